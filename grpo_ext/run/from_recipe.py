"""The parts of a run by its recipe, for training and evaluation: data, rewards, model arguments."""

from collections.abc import Iterable
from typing import Any

from datasets import Dataset, IterableDataset

from grpo_ext.environments.rules import COLUMNS
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.several_tasks import reward_specs
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.rewards.reward_specs import check_columns, resolve_rewards
from grpo_ext.rewards.run_defaults import set_model
from grpo_ext.run.task_rows import (
    can_hold_out,
    eval_rows_of,
    task_options,
    tell_filters,
    train_rows_of,
)
from grpo_ext.tasks.mix import mixed, mixed_streams


def train_rows(recipe: Recipe, **how: Any) -> Dataset | IterableDataset:
    """Return the training examples of the recipe; `how` are `streaming` and `prompts` of `Task.dataset`.

    The rows of several tasks are mixed by their shares.
    """
    how = {"streaming": recipe.run.dataset_streaming, **how}
    parts: dict[str, Any] = {}
    for name, (task, options) in task_options(recipe).items():
        of_task = train_rows_of(recipe, task, options, **how)
        tell_filters(name, of_task, "training")
        parts[name] = of_task.rows
    if not recipe.tasks:
        return parts[""]
    shares = {name: part.options.share for name, part in recipe.tasks.items() if part.options.share}
    rows = mix(recipe, parts, shares or None)
    return rows if recipe.run.max_train_samples is None else rows.take(recipe.run.max_train_samples)


def eval_rows(recipe: Recipe, **how: Any) -> Dataset | IterableDataset:
    """Return the held-out examples of the recipe, as `train_rows`; `ValueError` if its data has no such rows.

    The rows of several tasks are mixed, each once.
    """
    parts: dict[str, Any] = {}
    for name, (task, options) in task_options(recipe).items():
        of_task = eval_rows_of(recipe, task, options, **how)
        tell_filters(name, of_task, "evaluation")
        parts[name] = of_task.rows
    if not recipe.tasks:
        return parts[""]
    rows = mix(recipe, parts, None)
    return rows if recipe.run.max_eval_samples is None else rows.take(recipe.run.max_eval_samples)


def mix(recipe: Recipe, parts: dict[str, Any], shares: dict[str, float] | None) -> Any:
    """Return the rows of several tasks as one data set or stream."""
    if all(isinstance(rows, Dataset) for rows in parts.values()):
        return mixed(parts, shares)
    return mixed_streams(parts, shares, recipe.get("seed"))


def has_eval_rows(recipe: Recipe) -> bool:
    """Whether there may be held-out rows, of every task if there are several."""
    return all(can_hold_out(options) for _, options in task_options(recipe).values())


def named_rewards_and_weights(recipe: Recipe) -> tuple[list[Any], list[float]]:
    """Return the rewards of a recipe, or of its tasks, with weights; `ValueError` for an unknown reward or option."""
    run = recipe.run
    specs: Any = run.reward_funcs
    if recipe.tasks:
        specs = reward_specs(recipe.tasks)
    elif specs is None:
        specs = [
            {"name": name, "weight": weight} for name, weight in recipe.task.default_rewards.items()
        ]
    weights = recipe.values["training"].get("reward_weights")
    resolved = resolve_rewards(specs, reward_weights=weights, plugins=run.reward_plugins or ())
    set_model(resolved[0], recipe.model.model_name_or_path, recipe.model.model_revision)
    return resolved


def guarded_rewards(recipe: Recipe, columns: Iterable[str] | None) -> tuple[list[Any], list[float]]:
    """Return `named_rewards_and_weights` behind guards with the recipe's time limit and worker processes, as in training.

    `ValueError` if the data set's `columns` are known and lack one that a reward reads.
    """
    rewards, weights = named_rewards_and_weights(recipe)
    of_episodes = COLUMNS if recipe.get("environment") else ()
    check_columns(rewards, columns and [*columns, *of_episodes])
    limits = {"workers": recipe.get("reward_workers"), "timeout": recipe.get("reward_timeout")}
    return guard_rewards(rewards, **limits), weights


def model_init_kwargs(recipe: Recipe) -> dict[str, Any]:
    """Return the arguments to load the model with, as TRL's script passes them."""
    model = recipe.model
    more: Any = recipe.training.model_init_kwargs or {}  # text has become a mapping
    own = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }
    return {**own, **more}


def adapter_of(recipe: Recipe) -> Any:
    """Return peft's config of the adapter that the recipe trains; `None` if it trains the whole model."""
    from trl import get_peft_config

    config = get_peft_config(recipe.model)
    if config is not None:
        config.revision = (
            recipe.model.model_revision
        )  # saved with the adapter, to identify its base
    return config


def optimizer_of(recipe: Recipe) -> tuple[Any, dict[str, Any]] | None:
    """Return the `optimizer_cls_and_kwargs` of a trainer; `None` if `optim` names the optimizer."""
    from grpo_ext.tiny.optimizer import MuonWithAdamW

    options = {"lr": recipe.training.learning_rate, "weight_decay": recipe.training.weight_decay}
    return (
        (lambda: MuonWithAdamW, options) if recipe.get("muon") else None
    )  # a factory's optimizer gets the model
