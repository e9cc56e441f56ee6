"""The common part of the programs `train` and `sft`: from the recipe to the trained model, with errors as messages."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ext.common.devices import wait_calmly
from grpo_ext.common.files import checkpoints, write_atomically
from grpo_ext.common.modules import without_collector
from grpo_ext.recipe.difference import SAVED, as_yaml, check_same_run
from grpo_ext.recipe.read import split_config
from grpo_ext.rewards.failures import UserCodeFailure
from grpo_ext.run.output_dir import hold_folder, where_to_begin
from grpo_ext.run.ranks import (
    check_ranks,
    check_sharding,
    end_with_launcher,
    leave_ranks,
    tell_exit,
)
from grpo_ext.vllm import EngineFailure

if TYPE_CHECKING:
    from grpo_ext.seams.port import TransformersTrainer


def run_training(
    words: list[str] | None, make_trainer: Callable[[Any], Any], supervised: bool = False
) -> int:
    """Train by the recipe and overrides in `words`, by default the command line, and save the model.

    The exit code is 0; 1 if a reward, the environment or vLLM failed too often, steps had no finite gradient, an alarm ended
    the run, or the run learnt nothing; 2 if the recipe, its data, its rewards or the checkpoint cannot be used, or the run
    could not learn; 75 if a signal ended the run, which can be continued.
    """
    wait_calmly()
    code = _train(words, make_trainer, supervised)
    leave_ranks()  # the trainer is out of scope here
    return tell_exit(code)


def _train(words: list[str] | None, make_trainer: Callable[[Any], Any], supervised: bool) -> int:
    """Return the exit code."""
    with without_collector():
        from grpo_ext.recipe.load import load_recipe, load_sft_recipe
        from grpo_ext.trainer.checkpoint import CheckpointMismatch, save_result
        from grpo_ext.trainer.nonfinite import NonFiniteSteps
        from grpo_ext.trainer.signals import Interrupted
        from grpo_ext.trainer.start_checks import CannotLearn

    check_ranks()
    end_with_launcher()
    # transformers warns about its own options
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    path, words = split_config(sys.argv[1:] if words is None else words)
    try:
        recipe = load_sft_recipe(path, words) if supervised else load_recipe(path, words)
        check_same_run(recipe)
        hold_folder(recipe)
        trainer = make_trainer(recipe)
        resume = where_to_begin(recipe, trainer)
    except (ValueError, OSError) as error:
        print(f"Cannot run {path or 'without a recipe'}:\n{error}", file=sys.stderr)
        return 2
    check_sharding(trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled)
    if (
        "task" not in recipe.schema and trainer.is_world_process_zero()
    ):  # with a task, the trainer does it
        write_atomically(
            Path(trainer.args.output_dir) / SAVED, as_yaml(recipe.flat)
        )  # with preset and command line
    for note in recipe.notes:
        trainer.accelerator.print(f"note: {note}")
    trainer.accelerator.print(
        f"Resumes from {resume}." if resume else "Starts without a checkpoint."
    )
    try:
        trainer.train(resume_from_checkpoint=resume)
    except CheckpointMismatch as error:
        print(f"Cannot resume: {error}", file=sys.stderr)
        return 2
    except CannotLearn as error:
        if trainer.is_world_process_zero():
            print(f"Cannot run {path or 'without a recipe'}:\n{error}", file=sys.stderr)
        return 2
    except (UserCodeFailure, EngineFailure, NonFiniteSteps) as error:
        return stopped(trainer, error, 1)
    except Interrupted as signal:
        why = f"The cause is {signal}. The same command continues from there."
        return stopped(trainer, why, int(signal.code or 1))
    if getattr(trainer, "stopped_by", None):
        return stopped(trainer, trainer.stopped_by, 1)
    if wrong := save_result(trainer):
        how = "Free space on that disk: the same command then continues from the last checkpoint and saves the model."
        trainer.accelerator.print(
            f"The trained model could not be saved in {trainer.args.output_dir} ({wrong}). {how}"
        )
        return 1
    trainer.accelerator.print(f"Saved to {trainer.args.output_dir}.")
    if "task" in recipe.schema:
        trainer.accelerator.print(
            "next:", *next_commands(recipe, trainer.args.output_dir), sep="\n  "
        )
    trainer.accelerator.wait_for_everyone()  # no rank destroys the process group while another one saves
    return 1 if getattr(trainer, "learnt_nothing", None) else 0


def next_commands(recipe: Any, folder: str) -> list[str]:
    """Return the commands that show a finished run, compare its model with the first one, and merge the adapter or go on."""
    from grpo_ext.run.from_recipe import has_eval_rows

    out, saved, base = map(
        shlex.quote, (folder, f"{folder}/{SAVED}", str(recipe.get("model_name_or_path")))
    )
    length = "max_steps" if recipe.get("max_steps") > 0 else "num_train_epochs"
    rows = "" if has_eval_rows(recipe) else " --train_rows 64"
    found = [
        f"grpo-ext report {out}",
        f"grpo-ext eval --config {saved} --model {base} --model {out}{rows}",
    ]
    if recipe.get("use_peft"):
        found.append(f"grpo-ext merge --model {out}")
    elif checkpoints(Path(folder)):  # without one, a longer run is refused
        found.append(f"grpo-ext train --config {saved} --{length} {2 * recipe.get(length):g}")
    return found


def stopped(trainer: TransformersTrainer, why: object, code: int) -> int:
    """Print why the run ended early, and return the exit code: 1 if the checkpoint could not be written."""
    error = getattr(trainer, "save_error", None)
    how = f"without a checkpoint of it ({error})" if error else "with a checkpoint"
    if trainer.is_world_process_zero():
        print(f"Stopped after step {trainer.state.global_step}, {how}.\n{why}", file=sys.stderr)
    trainer.accelerator.wait_for_everyone()
    return 1 if error else code
