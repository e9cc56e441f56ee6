"""Load and filter the training and evaluation rows of one task of a recipe."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from datasets import Dataset, IterableDataset

from grpo_ext.common.foreign_files import read_text
from grpo_ext.common.hub import find_model
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.schema import RunConfig
from grpo_ext.recipe.several_tasks import TaskOptions
from grpo_ext.tasks.base import Task
from grpo_ext.tasks.held_out import HeldOutFilter
from grpo_ext.tasks.open_dataset import is_unsplit
from grpo_ext.tasks.row_filters import RowFilter
from grpo_ext.tasks.row_lengths import LengthFilter

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Options = RunConfig | TaskOptions


@dataclass
class TaskRows:
    """The rows of a task, and the filters that were applied to them.

    The rows of a stream are filtered and counted only as they are read.
    """

    rows: Dataset | IterableDataset
    filters: list[RowFilter]


def task_options(recipe: Recipe) -> dict[str, tuple[Task, Options]]:
    """Return each task of a recipe with its options, by the name of its entry in `tasks`.

    If the recipe has no `tasks`, its only task has the name `""`.
    """
    if not recipe.tasks:
        return {"": (recipe.task, recipe.run)}
    return {name: (entry.task, entry.options) for name, entry in recipe.tasks.items()}


def train_rows_of(
    recipe: Recipe,
    task: Task,
    options: Options,
    streaming: bool = False,
    prompts: bool = True,
) -> TaskRows:
    """Return the training examples of one task.

    Args:
        recipe: the whole recipe.
        task: one of its tasks.
        options: the options of this task.
        streaming: whether to return a stream, which reads rows as they are needed.
        prompts: whether to turn rows into examples by adding the prompt and the columns that
            rewards read. If `False`, rows are returned as they are in the data.

    Raises:
        ValueError: if the dataset cannot be opened or lacks the split, or no row is left (not
            checked for a stream).
        FileNotFoundError: if the dataset does not exist.
        ConnectionError: if the hub cannot be reached.
        OSError: if the tokenizer for a length limit, or a dataset folder, cannot be read.
    """
    filters = row_filters(recipe, options, held_out=False)
    rows = task.dataset(
        options.dataset_train_split,
        dataset_name=options.dataset_name,
        dataset_config=options.dataset_config,
        filters=filters,
        limit=options.max_train_samples,
        draw_seed=recipe.get("seed") if options.random_train_samples else None,
        streaming=streaming,
        prompts=prompts,
    )
    return TaskRows(rows, filters)


def eval_rows_of(
    recipe: Recipe,
    task: Task,
    options: Options,
    streaming: bool = False,
    prompts: bool = True,
) -> TaskRows:
    """Return the held-out examples of one task.

    If `held_out_share` and `dataset_streaming` are set, the data is always read as a stream. Unless
    `streaming` is true, its held-out rows (at most `max_eval_samples`) are returned as a dataset.

    Args:
        recipe: the whole recipe.
        task: one of its tasks.
        options: the options of this task.
        streaming: whether to return a stream, which reads rows as they are needed.
        prompts: whether to turn rows into examples by adding the prompt and the columns that
            rewards read. If `False`, rows are returned as they are in the data.

    Raises:
        ValueError: if the dataset has no held-out rows (not checked for a returned stream), cannot
            be opened, or lacks the split.
        FileNotFoundError: if the dataset does not exist.
        ConnectionError: if the hub cannot be reached.
        OSError: if the tokenizer for a length limit, or a dataset folder, cannot be read.
    """
    name = options.eval_dataset_name or options.dataset_name
    if not can_hold_out(options) and is_unsplit(Path(str(name)).expanduser()):
        raise ValueError(
            f"{name} has no held-out rows: set held_out_share to a share such as 0.05, or "
            "eval_dataset_name to a file or folder of held-out rows."
        )
    filters = row_filters(recipe, options, held_out=True)
    held_out = options.held_out_share is not None
    from_stream = held_out and recipe.run.dataset_streaming and not streaming
    rows = task.dataset(
        options.dataset_train_split if held_out else options.dataset_test_split,
        dataset_name=name,
        dataset_config=options.dataset_config,
        filters=filters,
        limit=options.max_eval_samples,
        streaming=streaming or from_stream,
        prompts=prompts,
    )
    if from_stream:
        rows = Dataset.from_list(list(rows))
        if not len(rows):
            raise ValueError(why_empty(str(name), filters))
    return TaskRows(rows, filters)


def why_empty(name: str, filters: list[RowFilter]) -> str:
    """Return the error message for a stream in which no row passes the filters.

    Args:
        name: the name of the dataset.
        filters: the row filters, in the order in which they were applied. The stream must have been
            read to its end, so that the filters have counted all rows.
    """
    for row_filter in filters:
        if row_filter.read and not row_filter.kept:
            return row_filter.nothing_left(row_filter.read)
    return (
        f"{name} has no rows, or the task accepts none of them. Choose another dataset, or loosen "
        "the options of the task."
    )


def row_filters(recipe: Recipe, options: Options, held_out: bool) -> list[RowFilter]:
    """Return the filters for a task's rows, in the order in which they are applied.

    Args:
        recipe: the whole recipe.
        options: the options of the task.
        held_out: `True` for the evaluation rows, `False` for the training rows.

    Raises:
        OSError: if a length limit is set, and the model's tokenizer cannot be loaded.
    """
    filters: list[RowFilter] = []
    if options.held_out_share is not None:
        filters.append(HeldOutFilter(options.held_out_share, held_out))
    if options.max_prompt_tokens is not None or options.max_answer_tokens is not None:
        filters.append(length_filter(recipe, options))
    return filters


def can_hold_out(options: Options) -> bool:
    """Return whether a task's data may have held-out rows.

    The result is `True` if `held_out_share` or `eval_dataset_name` is set, or if the task generates
    its rows. Otherwise, it is `False` for a file and for a folder that `datasets` saved without the
    evaluation split, and `True` for any other dataset. No request is sent to the hub.

    Raises:
        OSError, ValueError: if the folder's `dataset_dict.json` cannot be read or lists no splits.
    """
    if options.eval_dataset_name or options.held_out_share or not options.dataset_name:
        return True
    data = Path(options.dataset_name).expanduser()
    splits_file = data / "dataset_dict.json"
    if splits_file.is_file():
        saved = json.loads(read_text(splits_file, within=data))
        splits = saved.get("splits") if isinstance(saved, dict) else None
        if not isinstance(splits, list):
            raise ValueError(
                f"{splits_file} has no list of splits, so the dataset is damaged. Save it again "
                "with `save_to_disk`."
            )
        return options.dataset_test_split in splits
    return not is_unsplit(data)


def source_of_eval_rows(options: Options) -> str:
    """Return a phrase that says where evaluation rows come from, such as `held-out rows of X`."""
    name = options.eval_dataset_name or options.dataset_name
    if name is None:
        return "held-out rows that the task generates"
    unsplit = is_unsplit(Path(name).expanduser())
    if options.held_out_share is None:
        place = "all rows" if unsplit else f"the split {options.dataset_test_split}"
        return f"{place} of {name}"
    if unsplit:
        return f"held-out rows of {name}"
    return f"held-out rows of the split {options.dataset_train_split} of {name}"


def length_filter(recipe: Recipe, options: Options) -> LengthFilter:
    """Return a filter that applies `max_prompt_tokens` and `max_answer_tokens`.

    The filter counts tokens with the tokenizer of the recipe's model.

    Raises:
        OSError: if the tokenizer cannot be loaded.
    """
    values = recipe.flat
    template_kwargs = values["chat_template_kwargs"]
    if isinstance(template_kwargs, str):
        template_kwargs = json.loads(template_kwargs)
    tokenizer = load_tokenizer(
        values["model_name_or_path"],
        values["model_revision"],
        bool(values["trust_remote_code"]),
    )
    return LengthFilter(
        tokenizer,
        options.max_prompt_tokens,
        options.max_answer_tokens,
        template_kwargs,
    )


@lru_cache(maxsize=2)
def load_tokenizer(
    name: str,
    revision: str | None,
    trust_remote_code: bool,
) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer; the two used most recently are cached.

    Args:
        name: the folder or hub id of the model.
        revision: the revision of the hub repository; `None` uses its default branch.
        trust_remote_code: whether to run code that comes with the tokenizer.

    Raises:
        OSError: if the model is not a folder and can be found neither in the cache nor on the hub,
            or if its tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    find_model(name)
    return AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )


def report_filters(task: str, rows: TaskRows, purpose: str) -> None:
    """Print to stderr, on the first rank, how many rows each filter kept.

    Nothing is printed for a stream that has not been read yet.

    Args:
        task: the name of the task; `""` if the recipe has only one.
        rows: the task's rows, with their filters.
        purpose: what the rows are for, such as "training".
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if task:
        purpose = f"{task}, {purpose}"
    for row_filter in rows.filters:
        if row_filter.read:
            print(f"Rows for {purpose}: {row_filter.summary()}.", file=sys.stderr)
