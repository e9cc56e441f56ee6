"""What the programs `train` and `sft` share: recipe in, trained model out, faults told without a traceback."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_ext.common.devices import wait_calmly
from grpo_ext.recipe.difference import check_same_run, save_recipe
from grpo_ext.recipe.read import split_config
from grpo_ext.rewards.guard import RewardFailure
from grpo_ext.run.merge_adapter import save_merged
from grpo_ext.run.output_dir import hold_folder, where_to_begin
from grpo_ext.run.ranks import check_ranks, check_sharding, end_with_launcher, leave_ranks, tell_exit
from grpo_ext.vllm import EngineFailure


def run_training(words: list[str] | None, load: Callable[..., Any], make_trainer: Callable[[Any], Any]) -> int:
    """Train as the recipe that `words`, or the command line, name with `--config` and overrides says, and save.

    The exit code is 0; 1 where a reward or vLLM failed too often, steps had no finite gradient, or an alarm ended the run; 2
    where the recipe, its data, its rewards or the checkpoint cannot be used; 75 where a signal ended it and it can go on.
    """
    wait_calmly()
    code, recipe = _train(words, load, make_trainer)
    leave_ranks()  # here, where the trainer is out of scope
    if code == 0 and recipe.get("save_merged") and os.environ.get("RANK", "0") == "0":
        code = save_merged(recipe)  # no rank waits for it
    return tell_exit(code)


def _train(words: list[str] | None, load: Callable[..., Any], make_trainer: Callable[[Any], Any]) -> tuple[int, Any]:
    """The exit code, and the recipe where it could be used."""
    from grpo_ext.trainer.checkpoint import CheckpointMismatch, save_result
    from grpo_ext.trainer.nonfinite import NonFiniteSteps
    from grpo_ext.trainer.signals import Interrupted

    check_ranks()
    end_with_launcher()
    # transformers warns in every process that it will rename options of its own
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    path, words = split_config(sys.argv[1:] if words is None else words)
    try:
        recipe = load(path, words)
        check_same_run(recipe)
        hold_folder(recipe)
        trainer = make_trainer(recipe)
        resume = where_to_begin(recipe, trainer)
    except (ValueError, OSError) as error:
        print(f"Cannot run {path or 'without a recipe'}:\n{error}", file=sys.stderr)
        return 2, None
    check_sharding(trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled)
    if "task" not in recipe.schema and trainer.is_world_process_zero():  # with a task, the trainer itself does
        save_recipe(recipe, Path(trainer.args.output_dir))
    trainer.accelerator.print(f"goes on from {resume}" if resume else "begins anew")
    try:
        trainer.train(resume_from_checkpoint=resume)
    except CheckpointMismatch as error:
        print(f"Cannot go on: {error}", file=sys.stderr)
        return 2, recipe
    except (RewardFailure, EngineFailure, NonFiniteSteps) as error:
        return stopped(trainer, error, 1), recipe
    except Interrupted as signal:
        why = f"{signal} asked for it. The same command goes on from there."
        return stopped(trainer, why, int(signal.code or 1)), recipe
    if getattr(trainer, "stopped_by", None):
        return stopped(trainer, trainer.stopped_by, 1), recipe
    if wrong := save_result(trainer):
        how = "Make room on that disk; the same command goes on from the last checkpoint, if there is one, and saves the model."
        where = f"in {trainer.args.output_dir} ({wrong})"
        trainer.accelerator.print(f"The trained model could not be saved {where}. {how}")
        return 1, recipe
    trainer.accelerator.print(f"Saved to {trainer.args.output_dir}.")
    trainer.accelerator.wait_for_everyone()  # no rank takes the process group down while another still saves
    return 0, recipe


def stopped(trainer: Any, why: Any, code: int) -> int:
    """Say that the run ended before its last step; returns the exit code, 1 where the checkpoint could not be written."""
    error = getattr(trainer, "save_error", None)
    how = f"without a checkpoint of it ({error})" if error else "with a checkpoint"
    if trainer.is_world_process_zero():
        print(f"Stopped after step {trainer.state.global_step}, {how}.\n{why}", file=sys.stderr)
    trainer.accelerator.wait_for_everyone()
    return 1 if error else code
