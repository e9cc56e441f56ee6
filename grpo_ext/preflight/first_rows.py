"""The first rows of a recipe's data, read as in the run, and the check of their prompts."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from datasets.exceptions import DatasetNotFoundError

from grpo_ext.common.deadline import TooLate, deadline
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.from_recipe import train_rows

NO_ROW = (
    "the data has no row: loosen the task's limits (see its fields), max_prompt_tokens or "
    "max_answer_tokens, or name another data set."
)
PATIENCE = 4.0  # seconds that a data set may take to show its first rows


def first_rows(recipe: Recipe, count: int, findings: Findings) -> list[dict[str, Any]]:
    """Return the first training examples with their prompts, read as a stream, which is fast for a
    large data set.

    Faults of the data are problems, slow data is a note; both leave the list empty.
    """
    key = "dataset_name" if recipe.run.dataset_name else "task"
    return read_rows(lambda: train_rows(recipe, streaming=True), count, key, findings)


def read_rows(
    open_rows: Callable[[], Any], count: int, key: str, findings: Findings
) -> list[dict[str, Any]]:
    """Return the first rows of the data set that `open_rows` opens; faults are findings about
    `key`.
    """
    try:
        with deadline(PATIENCE), quiet("huggingface_hub"):
            rows = take(open_rows(), count)
    except (FileNotFoundError, DatasetNotFoundError) as error:
        findings.problem(error, key)
    except TooLate as error:
        findings.note(f"the rows could not be read here ({error}).", key)
    except OSError as error:  # ConnectionError, a missing tokenizer
        findings.absent(f"the rows cannot be read here: {error}", key)
    except (
        Exception
    ) as error:  # from a method of the task, or for a row that the task does not expect
        # the message of a KeyError is only the key, such as 'nums'
        words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        findings.problem(f"the rows cannot be used: {words}", key)
    else:
        if not rows:
            findings.problem(NO_ROW, key)
        return rows
    return []


def take(dataset: Any, count: int) -> list[dict[str, Any]]:
    """Return the first rows of a data set or stream; none of an empty file, where `datasets` raises
    StopIteration.
    """
    try:
        return list(islice(dataset, count))
    except StopIteration:
        return []


def check_prompts(rows: list[dict[str, Any]], findings: Findings) -> list[Any]:
    """Return the prompts of the rows; none if one of them is not a prompt, which is a problem."""
    prompts = [row["prompt"] for row in rows]
    if wrong := [prompt for prompt in prompts if not is_prompt(prompt)]:
        words = "it must be text, or messages with `role` and `content`, not empty."
        findings.problem(f"the task's prompt is {wrong[0]!r}: {words}", "task")
    return [] if wrong else prompts


def is_prompt(prompt: Any) -> bool:
    """Whether `prompt` is a non-empty text or list of chat messages."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str) and prompt != ""
    whole = all(isinstance(part, dict) and {"role", "content"} <= part.keys() for part in prompt)
    return prompt != [] and whole and bool(prompt[-1]["content"])


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Suppress the warnings of one logger and its children."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
