"""What the two training modules share: recipe in, trained model out, faults told without a traceback."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from grpo_ext.files import write_atomically
from grpo_ext.launch import check_ranks
from grpo_ext.recipe.read import split_config
from grpo_ext.rewards.guard import RewardFailure
from grpo_ext.vllm import EngineFailure


def run_training(
    words: list[str] | None,
    load: Callable[[str | None, list[str]], Any],
    make_trainer: Callable[[Any], Any],
    announce: Callable[[Any], None] | None = None,
) -> int:
    """Train as a recipe says, and save.

    Args:
        words: `--config RECIPE` and overrides; `None`: the command line.
        load: reads and checks the recipe.
        make_trainer: builds the trainer from it.
        announce: says what is about to run.

    Returns:
        The exit code: 0; 1 where a reward failed too often, or vLLM; 2 where the recipe, its data or rewards cannot be used.
    """
    from grpo_ext.observe.progress import show_progress
    from grpo_ext.trainer.resume import CheckpointMismatch

    check_ranks()
    # transformers warns in every process that it will rename options of its own
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    path, words = split_config(sys.argv[1:] if words is None else words)
    try:
        recipe = load(path, words)
        trainer = make_trainer(recipe)
    except (ValueError, OSError) as error:
        print(f"Cannot run {path or 'without a recipe'}:\n{error}", file=sys.stderr)
        return 2
    show_progress(trainer)
    if trainer.is_world_process_zero():
        save_recipe(recipe, Path(trainer.args.output_dir))
    if announce is not None:
        announce(trainer)
    resume = recipe.training.resume_from_checkpoint
    if resume in ("true", "True"):
        resume = trainer.newest_checkpoint() if hasattr(trainer, "newest_checkpoint") else True
    trainer.args.eval_on_start = trainer.args.eval_on_start and not resume  # its start is behind it
    try:
        trainer.train(resume_from_checkpoint=resume)
    except CheckpointMismatch as error:
        print(f"Cannot go on: {error}", file=sys.stderr)
        return 2
    except (RewardFailure, EngineFailure) as error:
        print(f"Stopped after step {trainer.state.global_step}, with a checkpoint.\n{error}", file=sys.stderr)
        return 1
    trainer.save_model()
    trainer.save_state()
    trainer.accelerator.print(f"Saved to {trainer.args.output_dir}.")
    trainer.accelerator.wait_for_everyone()  # no rank takes the process group down while another still saves
    if hasattr(trainer, "end"):  # transformers 5.18 and later
        trainer.end()
    return 0


def save_recipe(recipe: Any, folder: Path) -> None:
    """Write `recipe.yaml`: the recipe as it runs, with preset and command line, to be read in the report and run again."""
    values = {key: value for part in recipe.values.values() for key, value in part.items()}
    values.pop("resume_from_checkpoint", None)
    plain = json.loads(json.dumps(values, default=str))
    write_atomically(folder / "recipe.yaml", yaml.safe_dump(plain, allow_unicode=True, sort_keys=False))
