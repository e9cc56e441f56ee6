"""From a recipe to the parts of a run: data, rewards, model arguments. Shared by training and evaluation."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, IterableDataset

from grpo_ext.recipe.load import Recipe
from grpo_ext.rewards.sources import check_columns, resolve_rewards


def train_rows(recipe: Recipe) -> Dataset | IterableDataset:
    """The training examples that the recipe names."""
    run = recipe.run
    return recipe.task.dataset(
        run.dataset_train_split,
        dataset_name=run.dataset_name,
        dataset_config=run.dataset_config,
        streaming=run.dataset_streaming,
        limit=run.max_train_samples,
    )


def eval_rows(recipe: Recipe) -> Dataset:
    """The held-out examples that the recipe names.

    Raises:
        ValueError: if the data set is a file and the recipe names no held-out rows.
    """
    run = recipe.run
    name = run.eval_dataset_name or run.dataset_name
    if run.eval_dataset_name is None and is_file(name):
        raise ValueError(f"{name} is one file without a held-out split: set eval_dataset_name to the held-out rows.")
    return recipe.task.dataset(
        run.dataset_test_split, dataset_name=name, dataset_config=run.dataset_config, limit=run.max_eval_samples
    )


def is_file(name: str | None) -> bool:
    """Whether a data set's name means a file."""
    from grpo_ext.tasks.base import FILE_BUILDERS

    return name is not None and any(name.endswith(ending) for ending in FILE_BUILDERS)


def rewards_and_weights(recipe: Recipe, columns: list[str]) -> tuple[list[Any], list[float]]:
    """The rewards of a recipe, or its task's own, with their weights; every column that they read is there.

    Args:
        columns: of the data set.

    Raises:
        ValueError: naming the reward and what it lacks.
    """
    run = recipe.run
    specs = run.reward_funcs
    if specs is None:
        specs = [{"name": name, "weight": weight} for name, weight in recipe.task.default_rewards.items()]
    weights = recipe.values["training"].get("reward_weights")
    rewards, weights = resolve_rewards(specs, reward_weights=weights, plugins=run.reward_plugins or ())
    check_columns(rewards, columns)
    return rewards, weights


def model_init_kwargs(recipe: Recipe) -> dict[str, Any]:
    """How the model is loaded: TRL's own model arguments, as its script passes them."""
    model = recipe.model
    return {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(recipe.training.model_init_kwargs or {}),
    }
