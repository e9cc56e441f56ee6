"""The rows of one task by the keys of a recipe: which ones a run trains on, and which ones it is evaluated on."""

import json
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from grpo_ext.common.foreign_files import read_text
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.schema import RunConfig
from grpo_ext.recipe.several_tasks import TaskOptions
from grpo_ext.tasks.base import Task
from grpo_ext.tasks.held_out import HeldOutFilter
from grpo_ext.tasks.open_dataset import is_unsplit
from grpo_ext.tasks.row_filters import RowFilter
from grpo_ext.tasks.row_lengths import LengthFilter

Options = RunConfig | TaskOptions


@dataclass
class TaskRows:
    """The rows of a task, and the filters that they passed, which count the rows of a stream as they are read."""

    rows: Dataset | IterableDataset
    filters: list[RowFilter]


def task_options(recipe: Recipe) -> dict[str, tuple[Task, Options]]:
    """Return each task of a recipe with its options: by the name of its entry, or by "" if there is only one."""
    if not recipe.tasks:
        return {"": (recipe.task, recipe.run)}
    return {name: (entry.task, entry.options) for name, entry in recipe.tasks.items()}


def train_rows_of(recipe: Recipe, task: Task, options: Options, **how: Any) -> TaskRows:
    """Return the training examples of one task; `how` are `streaming` and `prompts` of `Task.dataset`."""
    filters = row_filters(recipe, options, held_out=False)
    rows = task.dataset(
        options.dataset_train_split,
        dataset_name=options.dataset_name,
        dataset_config=options.dataset_config,
        filters=filters,
        limit=options.max_train_samples,
        draw_seed=recipe.get("seed") if options.random_train_samples else None,
        **how,
    )
    return TaskRows(rows, filters)


def eval_rows_of(recipe: Recipe, task: Task, options: Options, **how: Any) -> TaskRows:
    """Return the held-out examples of one task; `ValueError` if its data set has no such rows.

    With `held_out_share` and `dataset_streaming`, the rows are read from the stream until there are `max_eval_samples`.
    """
    name = options.eval_dataset_name or options.dataset_name
    if not can_hold_out(options) and is_unsplit(Path(str(name)).expanduser()):
        raise ValueError(
            f"{name} has no held-out rows: set held_out_share, as in `held_out_share: 0.05`, or eval_dataset_name to a file "
            "or folder of held-out rows."
        )
    filters = row_filters(recipe, options, held_out=True)
    held_out = options.held_out_share is not None
    from_stream = held_out and recipe.run.dataset_streaming and not how.get("streaming")
    if from_stream:
        how["streaming"] = True
    rows = task.dataset(
        options.dataset_train_split if held_out else options.dataset_test_split,
        dataset_name=name,
        dataset_config=options.dataset_config,
        filters=filters,
        limit=options.max_eval_samples,
        **how,
    )
    if from_stream:
        rows = Dataset.from_list(list(rows))
        if not len(rows):
            raise ValueError(filters[0].nothing_left(filters[0].read))
    return TaskRows(rows, filters)


def row_filters(recipe: Recipe, options: Options, held_out: bool) -> list[RowFilter]:
    """Return the filters of the rows for evaluation (`held_out`) or for training, in the order in which they apply."""
    filters: list[RowFilter] = []
    lengths = length_filter(recipe, options)
    if options.held_out_share is not None:
        filters.append(HeldOutFilter(options.held_out_share, held_out))
    if lengths is not None:
        filters.append(lengths)
    return filters


def can_hold_out(options: Options) -> bool:
    """Whether the data may have held-out rows; a file, or a folder that `datasets` saved without such a split, has none."""
    if options.eval_dataset_name or options.held_out_share or not options.dataset_name:
        return True
    splits = Path(options.dataset_name).expanduser() / "dataset_dict.json"
    if splits.is_file():
        return (
            options.dataset_test_split
            in json.loads(read_text(splits, within=splits.parent))["splits"]
        )
    return not is_unsplit(Path(options.dataset_name).expanduser())


def source_of_eval_rows(options: Options) -> str:
    """Say where the rows for evaluation come from."""
    name = options.eval_dataset_name or options.dataset_name
    if name is None:
        return "held-out rows that the task makes"
    unsplit = is_unsplit(Path(name).expanduser())
    if options.held_out_share is not None:
        where = "" if unsplit else f"the split {options.dataset_train_split} of "
        return f"held-out rows of {where}{name}"
    return name if unsplit else f"the split {options.dataset_test_split} of {name}"


def length_filter(recipe: Recipe, options: Options) -> LengthFilter | None:
    """Return the filter by `max_prompt_tokens` and `max_answer_tokens`; `None` if neither is set.

    Its tokenizer is the model's. `OSError` if that cannot be loaded.
    """
    if options.max_prompt_tokens is None and options.max_answer_tokens is None:
        return None
    v = recipe.flat
    kwargs = v["chat_template_kwargs"]
    if isinstance(kwargs, str):
        kwargs = json.loads(kwargs)
    return LengthFilter(
        tokenizer_of(v["model_name_or_path"], v["model_revision"], bool(v["trust_remote_code"])),
        options.max_prompt_tokens,
        options.max_answer_tokens,
        kwargs,
    )


@lru_cache(maxsize=2)
def tokenizer_of(name: str, revision: str | None, trust_remote_code: bool) -> Any:
    """Return a model's tokenizer, which is loaded once in a process."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    )


def tell_filters(name: str, rows: TaskRows, purpose: str) -> None:
    """Print on the first rank how many rows each filter has kept; nothing of a stream, which is not read yet."""
    if os.environ.get("RANK", "0") != "0":
        return
    whose = f"{name}, {purpose}" if name else purpose
    for row_filter in rows.filters:
        if row_filter.read:
            print(f"Rows for {whose}: {row_filter.summary()}.", file=sys.stderr)
