"""Build the rows, the rewards and the model arguments that a recipe describes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from datasets import Dataset, IterableDataset

from grpo_ext.environments.episode_rules import COLUMNS
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.several_tasks import reward_specs
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.rewards.reward_specs import check_columns, resolve_rewards
from grpo_ext.rewards.run_defaults import set_model
from grpo_ext.run.environment_rows import with_environments
from grpo_ext.run.task_rows import (
    can_hold_out,
    eval_rows_of,
    report_filters,
    task_options,
    train_rows_of,
)
from grpo_ext.tasks.mix import mixed, mixed_streams

if TYPE_CHECKING:
    from peft import PeftConfig

Rows: TypeAlias = Dataset | IterableDataset


def train_rows(recipe: Recipe, *, streaming: bool | None = None, prompts: bool = True) -> Rows:
    """Return the training examples of a recipe; several tasks are mixed, by their shares if set.

    Print on the first rank how many rows each filter kept, unless they are streamed.

    Args:
        recipe: a recipe with one task or several.
        streaming: whether to yield rows as they are read. `None`: the recipe's `dataset_streaming`.
        prompts: whether to turn rows into examples.

    Raises:
        ValueError, FileNotFoundError, ConnectionError, OSError: for the reasons of `train_rows_of`,
            `mix` and `with_environments`.
    """
    if streaming is None:
        streaming = recipe.run.dataset_streaming
    rows_by_task = {}
    for name, (task, options) in task_options(recipe).items():
        task_rows = train_rows_of(recipe, task, options, streaming=streaming, prompts=prompts)
        report_filters(name, task_rows, "training")
        rows_by_task[name] = task_rows.rows
    shares = {}
    for name, entry in recipe.tasks.items():
        if entry.options.share:
            shares[name] = entry.options.share
    rows = mix(recipe, rows_by_task, shares or None, recipe.run.max_train_samples)
    return with_environments(recipe, rows) if prompts else rows


def eval_rows(recipe: Recipe, *, streaming: bool = False, prompts: bool = True) -> Rows:
    """Return the held-out examples of a recipe; several tasks are mixed.

    Each example occurs once, except with `streaming`: streams of several tasks repeat the shorter
    ones. Print on the first rank how many rows each filter kept, unless they are streamed.

    Args:
        recipe: a recipe with one task or several.
        streaming: whether to yield rows as they are read.
        prompts: whether to turn rows into examples.

    Raises:
        ValueError, FileNotFoundError, ConnectionError, OSError: for the reasons of `eval_rows_of`,
            `mix` and `with_environments`.
    """
    rows_by_task = {}
    for name, (task, options) in task_options(recipe).items():
        task_rows = eval_rows_of(recipe, task, options, streaming=streaming, prompts=prompts)
        report_filters(name, task_rows, "evaluation")
        rows_by_task[name] = task_rows.rows
    rows = mix(recipe, rows_by_task, None, recipe.run.max_eval_samples)
    return with_environments(recipe, rows) if prompts else rows


def mix(
    recipe: Recipe,
    rows_by_task: dict[str, Any],
    shares: dict[str, float] | None,
    limit: int | None,
) -> Rows:
    """Return the rows of several tasks as one dataset, or as one stream if any is a stream.

    Without `tasks`, return the only task's rows, to which the limit has already been applied.

    Args:
        recipe: the recipe; its seed is used for streams.
        rows_by_task: the rows of each task by its name.
        shares: the shares of the tasks, as for `mixed` and `mixed_streams`.
        limit: how many rows to keep; `None` keeps all.

    Raises:
        ValueError: for the reasons of `mixed` and `mixed_streams`.
    """
    if not recipe.tasks:
        return rows_by_task[""]
    rows: Rows
    if all(isinstance(task_rows, Dataset) for task_rows in rows_by_task.values()):
        rows = mixed(rows_by_task, shares)
    else:
        rows = mixed_streams(rows_by_task, shares, recipe.get("seed"))
    return rows if limit is None else rows.take(limit)


def has_eval_rows(recipe: Recipe) -> bool:
    """Return whether there may be held-out rows; with several tasks, whether each may have some."""
    return all(can_hold_out(options) for _, options in task_options(recipe).values())


def named_rewards_and_weights(recipe: Recipe) -> tuple[list[Any], list[float]]:
    """Return the rewards of a recipe and their weights.

    They come from `tasks` or `reward_funcs`, or are the defaults of the recipe's task.

    Raises:
        ValueError: if a reward is unknown, an option or a weight is invalid, or a plugin cannot be
            loaded.
    """
    run = recipe.run
    specs: Any = run.reward_funcs
    if recipe.tasks:
        specs = reward_specs(recipe.tasks)
    elif specs is None:
        specs = []
        for name, weight in recipe.task.default_rewards.items():
            specs.append({"name": name, "weight": weight})
    rewards, weights = resolve_rewards(
        specs,
        reward_weights=recipe.values["training"].get("reward_weights"),
        plugins=run.reward_plugins or (),
    )
    set_model(rewards, recipe.model.model_name_or_path, recipe.model.model_revision)
    return rewards, weights


def guarded_rewards(recipe: Recipe, columns: Iterable[str] | None) -> tuple[list[Any], list[float]]:
    """Return the rewards wrapped in guards, as in training, with their weights.

    Args:
        recipe: the recipe, which sets the guards' time limit and number of worker processes.
        columns: the columns of the dataset; `None` if they are not known.

    Raises:
        ValueError: if a reward does not fit the columns of the dataset, or for the reasons of
            `named_rewards_and_weights`.
    """
    rewards, weights = named_rewards_and_weights(recipe)
    if columns is not None and environments_of(recipe.flat):
        columns = [*columns, *COLUMNS]
    check_columns(rewards, columns)
    guarded = guard_rewards(
        rewards, workers=recipe.get("reward_workers"), timeout=recipe.get("reward_timeout")
    )
    return guarded, weights


def model_init_kwargs(recipe: Recipe) -> dict[str, Any]:
    """Return the keyword arguments for loading the model; `model_init_kwargs` overrides the others.

    They are the arguments of TRL's script without `trust_remote_code`, which TRL's trainers add.
    """
    model = recipe.model
    overrides: Any = recipe.training.model_init_kwargs or {}  # TRL has parsed text into a mapping
    return {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **overrides,
    }


def adapter_of(recipe: Recipe) -> PeftConfig | None:
    """Return peft's config for the adapter to train; `None` if the whole model is trained."""
    from trl import get_peft_config

    config = get_peft_config(recipe.model)
    if config is not None:
        # saved with the adapter, to identify its base
        config.revision = recipe.model.model_revision
    return config


def optimizer_of(recipe: Recipe) -> tuple[Any, dict[str, Any]] | None:
    """Return the `optimizer_cls_and_kwargs` for `muon: true`; `None` if `optim` applies."""
    from grpo_ext.tiny.optimizer import MuonWithAdamW

    if not recipe.get("muon"):
        return None
    training = recipe.training
    # If this is a factory, the trainer passes the model to the optimizer that it returns.
    return lambda: MuonWithAdamW, {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
    }
