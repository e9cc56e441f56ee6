"""Read the first training rows of a recipe, and check their prompts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from datasets.exceptions import DatasetNotFoundError
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from grpo_ext.common.quiet import quiet
from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.from_recipe import train_rows
from grpo_ext.run.task_rows import task_options
from grpo_ext.tasks.base import MissingColumn

Row = dict[str, Any]
NO_ROW = (
    "the data has no rows, or none that max_prompt_tokens, max_answer_tokens and the options of "
    "the task accept. Loosen these limits and options, or use another dataset."
)
PATIENCE = 4.0  # maximum number of seconds for reading the first rows of a dataset


def first_rows(recipe: Recipe, count: int, findings: Findings) -> list[Row]:
    """Read the first training rows of the run, with their prompts.

    They are read as a stream, which is fast for a large dataset. With `random_train_samples`, the
    rows are drawn from all rows as in the run; if reading all rows takes too long, the first rows
    are returned instead, and a note says so.

    The list is empty if

    - the data is faulty or has no rows, which is reported as a problem,
    - reading takes too long, which is reported as a note,
    - the data cannot be reached, which is reported as a problem or, if the run will be on another
      machine, as a note.

    Args:
        recipe: the recipe, which sets the tasks and their data.
        count: the maximum number of rows to return.
        findings: receives the problems and notes.
    """
    key = "dataset_name" if recipe.run.dataset_name else "task"
    are_drawn = any(options.random_train_samples for _, options in task_options(recipe).values())
    if are_drawn:
        drawn = Findings(places=findings.places, elsewhere=findings.elsewhere)
        rows = read_rows(lambda: train_rows(recipe), count, key, drawn)
        if rows or drawn.problems:
            findings.problems += drawn.problems
            return rows
    rows = read_rows(lambda: train_rows(recipe, streaming=True), count, key, findings)
    if rows and are_drawn:
        findings.note(
            "the rows that the run will draw could not be read here, so the first rows of the "
            "data were checked instead.",
            "random_train_samples",
        )
    return rows


def read_rows(
    open_rows: Callable[[], Iterable[Row]], count: int, key: str, findings: Findings
) -> list[Row]:
    """Read the first rows of a dataset; if this fails, report why and return an empty list.

    Args:
        open_rows: the function that opens the dataset.
        count: the maximum number of rows to return.
        key: the recipe key that findings refer to. If the data lacks a column that another key of
            the recipe names, the finding refers to that key instead.
        findings: receives the problem or note.
    """
    try:
        with deadline(PATIENCE), quiet("huggingface_hub"), no_progress_bars():
            rows = take(open_rows(), count)
    except (FileNotFoundError, DatasetNotFoundError) as error:
        findings.problem(error, key)
    except TooLate as error:
        findings.note(f"the rows could not be read here ({error}), so they were not checked.", key)
    except OSError as error:  # no connection, or no tokenizer
        findings.absent(f"the rows cannot be read here: {error}", key)
    except MissingColumn as error:
        if error.key is not None and findings.places.get(error.key):
            key = error.key
        findings.problem(f"the rows cannot be used: {error}", key)
    except ValueError as error:
        findings.problem(f"the rows cannot be used: {error}", key)
    except Exception as error:  # from a method of the task that did not expect such a row
        findings.problem(f"the rows cannot be used: {type(error).__name__}: {error}", key)
    else:
        if not rows:
            findings.problem(NO_ROW, key)
        return rows
    return []


def take(rows: Iterable[Row], count: int) -> list[Row]:
    """Return the first `count` rows of a dataset or stream, or all rows if there are fewer."""
    try:
        return list(islice(rows, count))
    except StopIteration:  # `datasets` raises it for an empty file
        return []


def are_prompts(rows: Sequence[Row], findings: Findings) -> bool:
    """Return whether all prompts are non-empty strings or chat messages; report the first fault."""
    for number, row in enumerate(rows, 1):
        if not is_prompt(row["prompt"]):
            findings.problem(
                "the task's prompt must be a string, or chat messages with `role` and `content`, "
                f"and must not be empty; that of row {number} is {row['prompt']!r:.200}.",
                "task",
            )
            return False
    return True


def is_prompt(prompt: object) -> bool:
    """Return whether `prompt` is a non-empty string or a non-empty list of chat messages.

    Each message must be a mapping with `role` and `content`, and the last content must not be
    empty.
    """
    if isinstance(prompt, str):
        return prompt != ""
    if not isinstance(prompt, list) or not prompt:
        return False
    for message in prompt:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            return False
    return bool(prompt[-1]["content"])


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Context manager that suppresses the progress bars of `datasets`."""
    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()
