"""Get the training and the evaluation rows of one task of a recipe, and filter them."""

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
    """The rows of a task, and the filters that they passed.

    The filters of a stream count its rows as they are read.
    """

    rows: Dataset | IterableDataset
    filters: list[RowFilter]


def task_options(recipe: Recipe) -> dict[str, tuple[Task, Options]]:
    """Return each task of a recipe with its options, by the name of its entry in `tasks`.

    The task of a recipe without `tasks` has the name "".
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
        streaming: whether to yield rows as they are read, as for `Task.dataset`.
        prompts: whether to turn rows into examples, as for `Task.dataset`.

    Raises:
        ValueError, FileNotFoundError, ConnectionError: for the reasons of `Task.dataset`.
        OSError: for the reasons of `row_filters`.
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

    With `held_out_share` and `dataset_streaming`, rows are read from the stream until there are
    `max_eval_samples`, unless `streaming` is set.

    Args:
        recipe: the whole recipe.
        task: one of its tasks.
        options: the options of this task.
        streaming: whether to yield rows as they are read, as for `Task.dataset`.
        prompts: whether to turn rows into examples, as for `Task.dataset`.

    Raises:
        ValueError: if the dataset has no held-out rows.
        ValueError, FileNotFoundError, ConnectionError: for the reasons of `Task.dataset`.
        OSError: for the reasons of `row_filters`.
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
    """Return the error message for a stream that has no rows left after its filters.

    Args:
        name: the name of the dataset.
        filters: the filters of its rows, in order, after they have read the stream.
    """
    for row_filter in filters:
        if row_filter.read and not row_filter.kept:
            return row_filter.nothing_left(row_filter.read)
    return (
        f"{name} has no rows, or the task accepts none of them. Name another dataset, or loosen "
        "the options of the task."
    )


def row_filters(recipe: Recipe, options: Options, held_out: bool) -> list[RowFilter]:
    """Return the filters of a task's rows, in order.

    Args:
        recipe: the whole recipe.
        options: the options of the task.
        held_out: whether to filter evaluation rows; otherwise training rows.

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
    """Return whether the data may have held-out rows.

    Without `held_out_share` or `eval_dataset_name`, a file has none, and neither does a folder that
    `datasets` saved without the evaluation split. Returns `True` for rows that the task generates,
    and for a dataset on the hub, without a request.

    Raises:
        OSError, ValueError: if the folder's `dataset_dict.json` cannot be read, or names no splits.
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
    """Describe where the rows for evaluation come from."""
    name = options.eval_dataset_name or options.dataset_name
    if name is None:
        return "held-out rows that the task generates"
    unsplit = is_unsplit(Path(name).expanduser())
    if options.held_out_share is None:
        return name if unsplit else f"the split {options.dataset_test_split} of {name}"
    if unsplit:
        return f"held-out rows of {name}"
    return f"held-out rows of the split {options.dataset_train_split} of {name}"


def length_filter(recipe: Recipe, options: Options) -> LengthFilter:
    """Return the filter by `max_prompt_tokens` and `max_answer_tokens`, with the model's tokenizer.

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
    """Return a model's tokenizer; the two used most recently are cached.

    Args:
        name: the folder or hub id of the model.
        revision: the revision of the hub repository; `None`: its default branch.
        trust_remote_code: whether to run code that comes with the tokenizer.

    Raises:
        OSError: if the model is neither a folder nor in the cache nor on a hub that answers, or its
            tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    find_model(name)
    return AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )


def report_filters(task: str, rows: TaskRows, purpose: str) -> None:
    """Print on the first rank how many rows each filter kept.

    Nothing is printed for a stream, which has not been read yet.

    Args:
        task: the name of the task, or "".
        rows: the rows of the task.
        purpose: the purpose of the rows, such as "training".
    """
    if os.environ.get("RANK", "0") != "0":
        return
    if task:
        purpose = f"{task}, {purpose}"
    for row_filter in rows.filters:
        if row_filter.read:
            print(f"Rows for {purpose}: {row_filter.summary()}.", file=sys.stderr)
