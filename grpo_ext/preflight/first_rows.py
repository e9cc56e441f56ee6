"""The first rows of a recipe's data, read as in the run, and the check of their prompts."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from datasets.exceptions import DatasetNotFoundError

from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.deadline import TooLate, deadline
from grpo_ext.run.parts import eval_rows, train_rows
from grpo_ext.run.task_rows import length_filter, task_options, train_rows_of

NO_ROW = (
    "the data has no row: loosen the task's limits (see its fields), max_prompt_tokens or max_answer_tokens, or name another "
    "data set."
)
PATIENCE = 4.0  # seconds that a data set may take to show its first rows
MOST_COUNTED = 20_000  # rows of a task that are counted by length


def first_rows(recipe: Recipe, count: int, findings: Findings) -> list[dict[str, Any]]:
    """Return the first training examples with their prompts, read as a stream, which is fast for a large data set.

    Faults of the data are problems, slow data is a note; both leave the list empty.
    """
    key = "dataset_name" if recipe.run.dataset_name else "task"
    return read_rows(lambda: train_rows(recipe, streaming=True), count, key, findings)


def check_eval_rows(recipe: Recipe, findings: Findings) -> None:
    """Check that there are held-out rows if the run evaluates."""
    if str(recipe.flat["eval_strategy"]) == "no":
        return
    key = "eval_dataset_name" if recipe.run.eval_dataset_name else "eval_strategy"
    read_rows(lambda: eval_rows(recipe, streaming=True), 1, key, findings)


def count_lengths(recipe: Recipe, findings: Findings) -> bool:
    """Add the figure "lengths": how many training rows stay by `max_prompt_tokens` and `max_answer_tokens`.

    The rows are read as in the run, at most `MOST_COUNTED` of each task and for `PATIENCE` seconds. There is no figure if no
    limit is set, or if the rows cannot be read, which `first_rows` reports. Return whether no task has lost all its rows,
    which is a problem.
    """
    some_left = True
    sentences: list[str] = []
    for name, (task, options) in task_options(recipe).items():
        key = "max_prompt_tokens" if options.max_prompt_tokens else "max_answer_tokens"
        try:
            length_filter(recipe, options)  # loads the tokenizer, before the time is taken
            opened = train_rows_of(recipe, task, options, streaming=True, prompts=False)
        except (ValueError, OSError):  # reported by `first_rows`
            continue
        lengths = opened.lengths
        if lengths is None:
            continue
        complete = False
        with suppress(Exception, TooLate), deadline(PATIENCE), quiet("huggingface_hub"):
            complete = count_rows(opened.rows, MOST_COUNTED) < MOST_COUNTED
        complete = complete and lengths.kept != options.max_train_samples
        if complete and not lengths.kept and lengths.read:
            findings.problem(lengths.nothing_left(lengths.read), "tasks" if name else key)
            some_left = False
        if lengths.read:
            whose = f"{name}: " if name else ""
            sentences.append(whose + lengths.summary("" if complete else "the first "))
    if sentences:
        findings.figures["lengths"] = sentences
    return some_left


def count_rows(rows: Any, most: int) -> int:
    """Return the number of rows of a stream, of which at most `most` are read."""
    return sum(1 for _ in islice(rows, most))


def read_rows(
    open_rows: Callable[[], Any], count: int, key: str, findings: Findings
) -> list[dict[str, Any]]:
    """Return the first rows of the data set that `open_rows` opens; faults are findings about `key`."""
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
    """Return the first rows of a data set or stream; none of an empty file, where `datasets` raises StopIteration."""
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
