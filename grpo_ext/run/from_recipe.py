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
    """Return a recipe's training examples; those of several tasks are mixed.

    If tasks set `share`, the examples are mixed in these proportions, and rows of some tasks may be
    repeated to reach them. Unless rows are streamed, the first rank prints how many rows each
    filter kept.

    Args:
        recipe: a recipe with one task or several.
        streaming: whether to return a stream, which reads rows as they are needed. If `None`, the
            recipe's `dataset_streaming` decides.
        prompts: whether to turn rows into examples by adding the prompt and the columns that
            rewards and environments read. If `False`, rows are returned as they are in the data.

    Raises:
        ValueError: if a dataset cannot be opened or lacks the split, a task has no rows left, a
            column has different types in two tasks, or, with the key `environments`, the rows do
            not name known environments.
        FileNotFoundError: if a dataset does not exist.
        ConnectionError: if the hub cannot be reached.
        OSError: if the tokenizer for a length limit, or a dataset folder, cannot be read.
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
    """Return a recipe's held-out examples; those of several tasks are mixed.

    Each example occurs once, unless several tasks are streamed: the shorter streams then start
    again until the longest one has ended. Unless rows are streamed, the first rank prints how many
    rows each filter kept.

    Args:
        recipe: a recipe with one task or several.
        streaming: whether to return a stream, which reads rows as they are needed.
        prompts: whether to turn rows into examples by adding the prompt and the columns that
            rewards and environments read. If `False`, rows are returned as they are in the data.

    Raises:
        ValueError: if a dataset cannot be opened or lacks the split, a task has no held-out rows, a
            column has different types in two tasks, or, with the key `environments`, the rows do
            not name known environments.
        FileNotFoundError: if a dataset does not exist.
        ConnectionError: if the hub cannot be reached.
        OSError: if the tokenizer for a length limit, or a dataset folder, cannot be read.
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
    """Return the rows of several tasks as one dataset, or as one stream if any task is streamed.

    If the recipe has no `tasks`, return the rows of its only task unchanged; `limit` has already
    been applied to them.

    Args:
        recipe: the recipe; its seed is used to interleave streams.
        rows_by_task: the rows of each task, by task name.
        shares: the relative share of each task, by task name. If `None`, a dataset contains each
            row once, and a stream draws from all tasks with equal probability.
        limit: the maximum number of rows in the mix; `None` keeps all.

    Raises:
        ValueError: if a task has no rows, or if a column has different types in two tasks; the
            types are not checked for streams.
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
    """Return whether every task of a recipe may have held-out rows.

    For a hub dataset, this is assumed without a request to the hub.

    Raises:
        OSError, ValueError: if the `dataset_dict.json` of a dataset folder cannot be read or lists
            no splits.
    """
    return all(can_hold_out(options) for _, options in task_options(recipe).values())


def named_rewards_and_weights(recipe: Recipe) -> tuple[list[Any], list[float]]:
    """Return a recipe's rewards, each a callable or a reward-model id, and the weight of each.

    The rewards come from `tasks` or `reward_funcs`; if neither is set, they are the defaults of the
    recipe's task. Rewards that load a language model get the recipe's model, unless they set their
    own.

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
    """Return a recipe's rewards, wrapped in guards as in training, and their weights.

    Args:
        recipe: the recipe, which sets the guards' time limit and number of worker processes.
        columns: the names of the dataset's columns; `None` if they are unknown.

    Raises:
        ValueError: if a reward reads a column that is missing, a column has a reserved name, a
            reward is unknown, an option or a weight is invalid, or a plugin cannot be loaded.
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
    """Return the keyword arguments for `from_pretrained`, as TRL's scripts set them.

    The recipe's `model_init_kwargs` override the others. `trust_remote_code` is left out, because
    TRL's trainers add it.
    """
    model = recipe.model
    overrides: Any = recipe.training.model_init_kwargs or {}  # TRL has parsed JSON into a mapping
    return {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **overrides,
    }


def adapter_of(recipe: Recipe) -> PeftConfig | None:
    """Return the PEFT config of the adapter to train, or `None` if the whole model is trained."""
    from trl import get_peft_config

    config = get_peft_config(recipe.model)
    if config is not None:
        # saved with the adapter, to identify its base
        config.revision = recipe.model.model_revision
    return config


def optimizer_of(recipe: Recipe) -> tuple[Any, dict[str, Any]] | None:
    """Return the trainer's `optimizer_cls_and_kwargs` for `muon: true`.

    If `muon` is not set, return `None`: the trainer then creates the optimizer named by `optim`.
    """
    from grpo_ext.tiny.optimizer import MuonWithAdamW

    if not recipe.get("muon"):
        return None
    training = recipe.training
    # If the first entry is a factory, the trainer passes the model to the class it returns.
    return lambda: MuonWithAdamW, {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
    }
