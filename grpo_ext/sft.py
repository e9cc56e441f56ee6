"""Supervised fine-tuning with TRL's `SFTTrainer`, from a recipe.

accelerate launch -m grpo_ext.sft --config RECIPE [--key value ...]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from grpo_ext.run.training import run_training

if TYPE_CHECKING:
    from trl import SFTTrainer

    from grpo_ext.recipe.load import Recipe


def main(words: list[str] | None = None) -> int:
    """Run supervised fine-tuning and return the exit code.

    The code is 0 if the run finished, 2 if the recipe, its data or the checkpoint cannot be used,
    75 if a signal ended the run, and 1 after a failure during the run, e.g. if the model could not
    be saved (`run_training` lists these failures). If a `grpo-ext` command started this process,
    the code after a signal is 0 instead of 75.

    Args:
        words: the command-line arguments; `None` uses those in `sys.argv`.
    """
    return run_training(words, make_trainer, supervised=True)


def make_trainer(recipe: Recipe) -> SFTTrainer:
    """Build TRL's `SFTTrainer` from a recipe.

    The recipe is checked before the model is loaded. `recipe.training.model_init_kwargs` is set in
    place.

    Raises:
        ValueError: if the recipe or the dataset has problems.
        OSError: if the dataset or the model cannot be found or read, or the hub does not answer.
    """
    from trl import SFTTrainer, get_quantization_config

    from grpo_ext.observe.progress import show_progress
    from grpo_ext.preflight.loaded_recipe import check_start
    from grpo_ext.run.from_recipe import adapter_of, model_init_kwargs, optimizer_of
    from grpo_ext.tasks.open_dataset import open_dataset

    check_start(recipe)
    args = recipe.training
    run: Any = recipe.run  # a LaunchConfig
    train_dataset = open_dataset(
        run.dataset_name, run.dataset_train_split, run.dataset_config, run.dataset_streaming
    )
    args.model_init_kwargs = model_init_kwargs(recipe)
    trainer = SFTTrainer(
        recipe.get("model_name_or_path"),
        args=args,
        train_dataset=train_dataset,
        optimizer_cls_and_kwargs=optimizer_of(recipe),
        quantization_config=get_quantization_config(recipe.model),
        peft_config=adapter_of(recipe),
    )
    show_progress(trainer)
    return trainer


if __name__ == "__main__":
    sys.exit(main())
