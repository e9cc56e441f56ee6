"""How many rows a recipe trains on and is evaluated on, counted by reading its data as a run
does.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from grpo_ext.common.deadline import TooLate, deadline
from grpo_ext.preflight.first_rows import PATIENCE, quiet, read_rows
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.from_recipe import eval_rows
from grpo_ext.run.task_rows import (
    Options,
    TaskRows,
    eval_rows_of,
    row_filters,
    source_of_eval_rows,
    task_options,
    train_rows_of,
)
from grpo_ext.tasks.row_filters import RowFilter
from grpo_ext.tasks.row_lengths import LengthFilter

MOST = 20_000  # rows of a task that are counted


def count_train_rows(recipe: Recipe, findings: Findings) -> bool:
    """Add the figure "rows": a sentence for each filter of each task, on how many training rows
    stay.

    There is no figure without filters, or if the rows cannot be read, which `first_rows` reports.
    Return whether no filter drops all rows of a task, which is a problem.
    """
    some_left = True
    sentences: list[str] = []
    for name, (task, options) in task_options(recipe).items():
        try:
            if not row_filters(recipe, options, held_out=False):  # loads the tokenizer
                continue
            opened = train_rows_of(recipe, task, options, streaming=True, prompts=False)
        except (ValueError, OSError):
            continue
        used = count(opened)
        complete = used is not None and used != options.max_train_samples
        part = "" if complete else "the first "
        for row_filter in opened.filters:
            if row_filter.read:
                sentences.append(prefixed(name, row_filter.summary(part)))
            if row_filter.read and not row_filter.kept and used == 0:
                message = row_filter.nothing_left(row_filter.read)
                findings.problem(prefixed(name, message), "tasks" if name else key_of(row_filter))
                some_left = False
    if sentences:
        findings.figures["rows"] = sentences
    return some_left


def check_eval_rows(recipe: Recipe, findings: Findings) -> None:
    """Add the figure "evaluation": for each task, which rows an evaluation uses and how many these
    are.

    If the run evaluates, rows that do not exist or cannot be read are findings; otherwise the
    figure says so.
    """
    evaluates = str(recipe.flat["eval_strategy"]) != "no"
    if evaluates:
        key = "eval_dataset_name" if recipe.run.eval_dataset_name else "eval_strategy"
        before = len(findings.problems)
        read_rows(lambda: eval_rows(recipe, streaming=True), 1, key, findings)
        if len(findings.problems) > before:
            return
    sentences = []
    for name, (task, options) in task_options(recipe).items():

        def opened() -> TaskRows:
            return eval_rows_of(recipe, task, options, streaming=True)  # noqa: B023

        sentences.append(prefixed(name, rows_of_evaluation(opened, options)))
    findings.figures["evaluation"] = sentences


def rows_of_evaluation(opened: Callable[[], TaskRows], options: Options) -> str:
    """Say which rows an evaluation uses, how many these are if they are on this machine, or why
    there are none.
    """
    source = source_of_eval_rows(options)
    aside = Findings(elsewhere=True)
    read_rows(lambda: opened().rows, 1, "", aside)
    if aside.problems:
        return f"none: {aside.problems[0].message}"
    if aside.notes:
        return f"{source}, which cannot be read here"
    name = options.eval_dataset_name or options.dataset_name
    if name is not None and not Path(name).expanduser().exists():
        return source
    used = count(opened())
    if used is None:
        return f"{source}, more than could be counted in {PATIENCE:g} s"
    first = "the first " if used == options.max_eval_samples else ""
    return f"{source}: {first}{used:,}"


def count(opened: TaskRows) -> int | None:
    """Return the number of rows; `None` if there are `MOST` or more, or if reading them takes too
    long.
    """
    used = None
    with suppress(Exception, TooLate), deadline(PATIENCE), quiet("huggingface_hub"):
        used = sum(1 for _ in islice(opened.rows, MOST))
    return None if used == MOST else used


def prefixed(name: str, sentence: str) -> str:
    """Return a sentence about a task with the task's name, if it has one."""
    return f"{name}: {sentence}" if name else sentence


def key_of(row_filter: RowFilter) -> str:
    """Return the key that a problem about a filter is reported for."""
    if isinstance(row_filter, LengthFilter):
        return "max_prompt_tokens" if row_filter.max_prompt_tokens else "max_answer_tokens"
    return "held_out_share"
