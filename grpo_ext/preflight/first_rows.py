"""The first rows of a recipe's data, read as the run will read them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from datasets.exceptions import DatasetNotFoundError

from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.deadline import TooLate, deadline
from grpo_ext.run.parts import eval_rows, train_rows

NO_ROW = "the data has no row: loosen the task's limits (see its fields), or name another data set."
PATIENCE = 4.0  # seconds that a data set may take to show its first rows


def first_rows(recipe: Recipe, count: int, findings: Findings) -> list[dict[str, Any]]:
    """The first training examples with their prompts, read as a stream so that a large data set answers at once.

    What is wrong with the data is a problem; data that takes long to come is a note. Both leave the list empty.
    """
    key = "dataset_name" if recipe.run.dataset_name else "task"
    return read_rows(lambda: train_rows(recipe, streaming=True), count, key, findings)


def check_eval_rows(recipe: Recipe, findings: Findings) -> None:
    """Whether there are held-out rows where the run evaluates."""
    if str(recipe.flat["eval_strategy"]) == "no":
        return
    key = "eval_dataset_name" if recipe.run.eval_dataset_name else "eval_strategy"
    read_rows(lambda: eval_rows(recipe, streaming=True), 1, key, findings)


def read_rows(open_rows: Callable[[], Any], count: int, key: str, findings: Findings) -> list[dict[str, Any]]:
    """The first rows of what `open_rows` opens; what goes wrong is told about `key`."""
    try:
        with deadline(PATIENCE), quiet("huggingface_hub"):
            rows = take(open_rows(), count)
    except (FileNotFoundError, DatasetNotFoundError) as error:
        findings.problem(error, key)
    except TooLate as error:
        findings.note(f"the rows could not be read here ({error}).", key)
    except OSError as error:  # ConnectionError, a tokenizer that is not here
        findings.absent(f"the rows cannot be read here: {error}", key)
    except Exception as error:  # a task's own method, or a row that is not what the task expects
        # the words of a KeyError alone, such as 'nums', would say little
        words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        findings.problem(f"the rows cannot be used: {words}", key)
    else:
        if not rows:
            findings.problem(NO_ROW, key)
        return rows
    return []


def take(dataset: Any, count: int) -> list[dict[str, Any]]:
    """The first rows of a data set or stream; none of an empty file, at which `datasets` raises StopIteration."""
    try:
        return list(islice(dataset, count))
    except StopIteration:
        return []


def check_prompts(rows: list[dict[str, Any]], findings: Findings) -> list[Any]:
    """The rows' prompts, if a model can be asked all of them; else none."""
    prompts = [row["prompt"] for row in rows]
    if wrong := [prompt for prompt in prompts if not is_prompt(prompt)]:
        words = "it must be text, or messages with `role` and `content`, not empty."
        findings.problem(f"the task's prompt is {wrong[0]!r}: {words}", "task")
    return [] if wrong else prompts


def is_prompt(prompt: Any) -> bool:
    """Whether this is text, or a list of chat messages."""
    if not isinstance(prompt, list):
        return isinstance(prompt, str) and prompt != ""
    whole = all(isinstance(part, dict) and {"role", "content"} <= part.keys() for part in prompt)
    return prompt != [] and whole and bool(prompt[-1]["content"])


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep the warnings of one logger, and of those under it, back."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
