"""Train from a recipe and save the model, for both `grpo_ext.train` and `grpo_ext.sft`."""

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
from grpo_ext.observe.log_files import SAMPLES
from grpo_ext.recipe.difference import SAVED, as_yaml, check_same_run
from grpo_ext.recipe.read import split_config
from grpo_ext.rewards.scores import UserCodeFailure
from grpo_ext.run.allocator import keep_allocator_from_children
from grpo_ext.run.output_dir import checkpoint_to_resume, hold_folder
from grpo_ext.run.ranks import (
    check_ranks,
    check_sharding,
    end_with_launcher,
    leave_ranks,
    report_exit,
)
from grpo_ext.vllm import EngineFailure

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe
    from grpo_ext.seams.port import TransformersTrainer

MakeTrainer = Callable[["Recipe"], Any]


def run_training(
    words: list[str] | None,
    make_trainer: MakeTrainer,
    supervised: bool = False,
) -> int:
    """Train from a recipe and save the model.

    Args:
        words: command-line arguments that name the recipe and override its keys; `None` uses
            `sys.argv[1:]`.
        make_trainer: a function that takes the loaded recipe and returns its trainer.
        supervised: whether the recipe is for supervised training.

    Returns:
        The exit code:

        - 0: the model was trained and saved.
        - 1: a reward or the environment failed too often, an engine failed, too many steps had a
          non-finite gradient, an alarm ended the run, the run learned nothing, or the model or the
          last checkpoint could not be saved.
        - 2: the recipe, its data, its rewards or the checkpoint cannot be used, or the run could
          not learn.
        - 75: a signal ended the run, which can be continued. If a `grpo-ext` command started this
          process, 0 is returned instead, and 75 is reported to that command.

    Raises:
        SystemExit: if `--config` has no value, if accelerate started a single process instead of
            several, or if the model is not sharded although the accelerate config asks for it.
    """
    wait_calmly()
    keep_allocator_from_children()
    try:
        code = _train(words, make_trainer, supervised)
    except BaseException:
        report_exit(1)
        raise
    leave_ranks()  # the trainer is out of scope here
    return report_exit(code)


def _train(words: list[str] | None, make_trainer: MakeTrainer, supervised: bool) -> int:
    """Do the work of `run_training`, and return the exit code without reporting it."""
    with without_collector():
        from grpo_ext.recipe.load import load_recipe, load_sft_recipe
        from grpo_ext.trainer.checkpoint import CheckpointMismatch
        from grpo_ext.trainer.start_checks import CannotLearn
        from grpo_ext.trainer.stopping import Interrupted, NonFiniteSteps

    check_ranks()
    end_with_launcher()
    # transformers warns about its own options
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    path, overrides = split_config(sys.argv[1:] if words is None else words)
    recipe_name = path or "this recipe"
    load = load_sft_recipe if supervised else load_recipe
    try:
        recipe = load(path, overrides)
        check_same_run(recipe)
        hold_folder(recipe)
        trainer = make_trainer(recipe)
        checkpoint = checkpoint_to_resume(recipe, trainer)
    except (ValueError, OSError) as error:
        print(f"Cannot run {recipe_name}:\n{error}", file=sys.stderr)
        return 2
    check_sharding(trainer.is_fsdp_enabled, trainer.is_deepspeed_enabled)
    if not recipe.grpo and trainer.is_world_process_zero():
        # with the values of the preset and the command line; the GRPO trainer does this itself
        write_atomically(recipe.output_dir / SAVED, as_yaml(recipe.flat))
    for note in recipe.notes:
        trainer.accelerator.print(f"note: {note}")
    if not checkpoint:
        trainer.accelerator.print("Starting without a checkpoint.")
    elif supervised:  # the GRPO trainer prints the checkpoint itself
        newest = "the newest checkpoint" if checkpoint is True else checkpoint
        trainer.accelerator.print(f"Resuming from {newest}.")
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except CheckpointMismatch as error:
        print(f"Cannot resume: {error}", file=sys.stderr)
        return 2
    except CannotLearn as error:
        if trainer.is_world_process_zero():
            print(f"Cannot run {recipe_name}:\n{error}", file=sys.stderr)
        return 2
    except (UserCodeFailure, EngineFailure, NonFiniteSteps) as error:
        return end_early(trainer, error, 1)
    except Interrupted as signal:
        reason = f"The cause is {signal}. To continue the run, {how_to_continue(recipe)}."
        return end_early(trainer, reason, int(signal.code or 1))
    if getattr(trainer, "stopped_by", None):
        return end_early(trainer, trainer.stopped_by, 1)
    return save_model(recipe, trainer)


def save_model(recipe: Recipe, trainer: TransformersTrainer) -> int:
    """Save the trained model, print suggested next commands, and return the exit code.

    All ranks must call this function. The exit code is 1 if the model could not be saved or the run
    learned nothing, otherwise 0.
    """
    from grpo_ext.trainer.checkpoint import save_result

    failure = save_result(trainer)
    if failure:
        trainer.accelerator.print(
            f"The trained model could not be saved in {recipe.output_dir} ({failure}). Correct the "
            f"cause, such as a full disk, and {how_to_continue(recipe)}. The run then continues "
            "from the newest checkpoint, if there is one, and saves the model."
        )
        return 1
    trainer.accelerator.print(f"Saved to {recipe.output_dir}.{where_to_look(recipe)}")
    if recipe.grpo:
        commands = next_commands(recipe, str(recipe.output_dir))
        trainer.accelerator.print("next:", *commands, sep="\n  ")
    # No rank may destroy the process group while another one saves.
    trainer.accelerator.wait_for_everyone()
    return int(bool(getattr(trainer, "learned_nothing", None)))


def where_to_look(recipe: Recipe) -> str:
    """Return a sentence that names the files with a run's completions and curves.

    The sentence begins with a space. Return an empty string if the run has neither file.
    """
    from grpo_ext.evaluation.table import CURVES

    folder = Path(recipe.output_dir)
    contents = {SAMPLES: "completions with their rewards", CURVES: "curves"}
    files = [f"{name} ({what})" for name, what in contents.items() if (folder / name).is_file()]
    return f" The folder also has {' and '.join(files)}." if files else ""


def how_to_continue(recipe: Recipe) -> str:
    """Return a clause in the imperative that says how to continue from the newest checkpoint."""
    choice = recipe.get("resume_from_checkpoint")
    if not choice and recipe.flat.has("resume"):
        if recipe.get("resume") != "auto":
            return "run the same command again with --resume auto"
    elif choice not in ("auto", "true", "True"):
        return "run the same command again with --resume_from_checkpoint true"
    return "run the same command again"


def next_commands(recipe: Recipe, folder: str) -> list[str]:
    """Return the shell commands to suggest after a run whose model was saved in `folder`.

    They print a report, compare the trained model with the original one and, if an adapter was
    trained, merge it. If the whole model was trained and there are checkpoints, the last command
    trains for twice as long instead.
    """
    from grpo_ext.run.from_recipe import has_eval_rows

    model = shlex.quote(folder)
    saved_recipe = shlex.quote(f"{folder}/{SAVED}")
    first_model = shlex.quote(str(recipe.get("model_name_or_path")))
    rows = "" if has_eval_rows(recipe) else " --train_rows 64"
    commands = [
        f"grpo-ext report {model}",
        f"grpo-ext eval --config {saved_recipe} --model {first_model} --model {model}{rows}",
    ]
    if recipe.get("use_peft"):
        commands.append(f"grpo-ext merge --model {model}")
    elif checkpoints(Path(folder)):  # without a checkpoint, this command would fail
        length = "max_steps" if recipe.get("max_steps") > 0 else "num_train_epochs"
        twice = f"--{length} {2 * recipe.get(length):g}"
        commands.append(f"grpo-ext train --config {saved_recipe} {twice}")
    return commands


def end_early(trainer: TransformersTrainer, reason: object, code: int) -> int:
    """Print why the run ended early, and return the exit code.

    All ranks must call this function.

    Args:
        trainer: the trainer, which has written a checkpoint or set `save_error`.
        reason: why the run ended.
        code: the exit code to return if a checkpoint was written; otherwise 1 is returned.
    """
    error = getattr(trainer, "save_error", None)
    saved = "with a checkpoint"
    if error:
        saved = f"but its checkpoint could not be written ({error})"
        code = 1
    if trainer.is_world_process_zero():
        print(
            f"Stopped after step {trainer.state.global_step}, {saved}.\n{reason}", file=sys.stderr
        )
    trainer.accelerator.wait_for_everyone()
    return code
