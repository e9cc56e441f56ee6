"""GRPO training from a recipe.

accelerate launch -m grpo_ext.train --config RECIPE [--key value ...]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from grpo_ext.run.training import run_training

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe
    from grpo_ext.trainer import GRPOExtTrainer


def main(words: list[str] | None = None) -> int:
    """Run GRPO training and return the exit code.

    The code is 0 if the run finished; 2 if the recipe, its data, its rewards or the checkpoint
    cannot be used, or if the run could not learn anything; 75 if a signal ended the run; and 1
    after a failure during the run, e.g. if a reward failed too often (`run_training` lists these
    failures). If a `grpo-ext` command started this process, the code after a signal is 0 instead of
    75.

    Args:
        words: the command-line arguments; `None` uses those in `sys.argv`.
    """
    return run_training(words, make_trainer)


def make_trainer(
    recipe: Recipe, model: Any = None, rewards: list[Any] | None = None, **more: Any
) -> GRPOExtTrainer:
    """Build the trainer for a recipe.

    The recipe, its rewards and its rows are checked before the model is loaded. `recipe.training`
    is changed in place: `reward_weights` is set, `model_init_kwargs` is set if a model will be
    loaded, and `eval_on_start` is turned off if `eval_strategy` is "no".

    Args:
        recipe: the recipe to train from.
        model: a model to train instead of the recipe's.
        rewards: rewards to use instead of the recipe's, each with a weight of 1.
        more: additional keyword arguments for `GRPOExtTrainer`.

    Raises:
        ValueError: if the recipe, its rewards or its rows have problems, or the trainer rejects
            them.
        FileNotFoundError: if the dataset of the recipe does not exist.
        ConnectionError: if the hub does not answer.
        OSError: if a file of the dataset or the model cannot be read.
    """
    from trl import get_quantization_config

    from grpo_ext.preflight.loaded_recipe import check_start
    from grpo_ext.run.from_recipe import (
        adapter_of,
        eval_rows,
        model_init_kwargs,
        named_rewards_and_weights,
        optimizer_of,
        train_rows,
    )
    from grpo_ext.trainer import GRPOExtTrainer

    args = recipe.training
    if rewards is None:
        rewards, args.reward_weights = named_rewards_and_weights(recipe)
    else:
        args.reward_weights = [1.0] * len(rewards)
    train_dataset = train_rows(recipe)
    eval_dataset = eval_rows(recipe) if args.eval_strategy != "no" else None
    args.eval_on_start = (
        args.eval_on_start and eval_dataset is not None
    )  # `--eval_strategy no` turns all evaluations off
    check_start(recipe, train_dataset, rewards, model is not None)
    if model is None or args.beta:  # the reference model is loaded with these arguments, too
        args.model_init_kwargs = model_init_kwargs(recipe)
    if model is None:
        model = recipe.model.model_name_or_path
    assert model is not None, "the check of a recipe asks for model_name_or_path"
    return GRPOExtTrainer(
        model,
        rewards,
        args,
        train_dataset,
        eval_dataset,
        quantization_config=get_quantization_config(recipe.model),
        peft_config=adapter_of(recipe),
        recipe=recipe.flat,
        optimizer_cls_and_kwargs=optimizer_of(recipe),
        **more,
    )


if __name__ == "__main__":
    sys.exit(main())
