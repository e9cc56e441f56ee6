"""The rows of one task by the keys of a recipe: which ones a run trains on, and which ones it is evaluated on."""

import json
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.schema import RunConfig
from grpo_ext.recipe.several_tasks import TaskOptions
from grpo_ext.tasks.base import FILE_BUILDERS, Task
from grpo_ext.tasks.row_lengths import LengthFilter

Options = RunConfig | TaskOptions


@dataclass
class TaskRows:
    """The rows of a task, and the filter by length that they passed; it counts the rows of a stream as they are read."""

    rows: Dataset | IterableDataset
    lengths: LengthFilter | None


def task_options(recipe: Recipe) -> dict[str, tuple[Task, Options]]:
    """Return each task of a recipe with its options: by the name of its entry, or by "" if there is only one."""
    if not recipe.tasks:
        return {"": (recipe.task, recipe.run)}
    return {name: (entry.task, entry.options) for name, entry in recipe.tasks.items()}


def train_rows_of(recipe: Recipe, task: Task, options: Options, **how: Any) -> TaskRows:
    """Return the training examples of one task; `how` are `streaming` and `prompts` of `Task.dataset`."""
    lengths = length_filter(recipe, options)
    rows = task.dataset(
        options.dataset_train_split,
        dataset_name=options.dataset_name,
        dataset_config=options.dataset_config,
        filters=[lengths] if lengths else [],
        limit=options.max_train_samples,
        **how,
    )
    return TaskRows(rows, lengths)


def eval_rows_of(recipe: Recipe, task: Task, options: Options, **how: Any) -> TaskRows:
    """Return the held-out examples of one task; `ValueError` if its data set is a file without such rows."""
    name = options.eval_dataset_name or options.dataset_name
    if not can_hold_out(options):
        raise ValueError(
            f"{name} has no held-out split: set eval_dataset_name to a file or folder of held-out rows."
        )
    lengths = length_filter(recipe, options)
    rows = task.dataset(
        options.dataset_test_split,
        dataset_name=name,
        dataset_config=options.dataset_config,
        filters=[lengths] if lengths else [],
        limit=options.max_eval_samples,
        **how,
    )
    return TaskRows(rows, lengths)


def can_hold_out(options: Options) -> bool:
    """Whether the data may have held-out rows: a file, or a folder that `datasets` saved, has none by itself."""
    if options.eval_dataset_name or not options.dataset_name:
        return True
    path = Path(options.dataset_name).expanduser()
    return not (path.suffix in FILE_BUILDERS or (path / "state.json").exists())


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


def tell_lengths(name: str, rows: TaskRows, purpose: str) -> None:
    """Print on the first rank how many rows a filter has kept; nothing of a stream, which is not read yet."""
    lengths = rows.lengths
    if lengths and lengths.read and os.environ.get("RANK", "0") == "0":
        whose = f"{name}: " if name else ""
        print(f"{whose}{lengths.summary()} for {purpose}.", file=sys.stderr)
