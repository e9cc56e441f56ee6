"""Count the training and evaluation rows of a recipe, reading them as a run does."""

from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from grpo_ext.common.quiet import quiet
from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.preflight.first_rows import PATIENCE, read_rows
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
from grpo_ext.tasks.base import Task
from grpo_ext.tasks.row_filters import RowFilter
from grpo_ext.tasks.row_lengths import LengthFilter

MAX_COUNTED = 20_000  # maximum number of rows counted per task


def count_train_rows(recipe: Recipe, findings: Findings) -> bool:
    """Record how many training rows each filter of each task keeps, as the figure "rows".

    The figure is a list with a sentence for each filter. Tasks whose rows cannot be read are left
    out, because `first_rows` reports them. If the list would be empty, there is no figure.

    Returns:
        `False` if the filters of a task keep none of its rows, which is reported as a problem;
        otherwise `True`, even if rows cannot be read.
    """
    has_rows = True
    sentences: list[str] = []
    for name, (task, options) in task_options(recipe).items():
        try:
            if not row_filters(recipe, options, held_out=False):  # may fail to load the tokenizer
                continue
            opened = train_rows_of(recipe, task, options, streaming=True, prompts=False)
        except (ValueError, OSError):
            continue
        used = count(opened)
        is_complete = used is not None and used != options.max_train_samples
        part = "" if is_complete else "the first "
        for row_filter in opened.filters:
            if not row_filter.read:
                continue
            sentences.append(prefixed(name, row_filter.summary(part)))
            if not row_filter.kept and used == 0:
                message = row_filter.nothing_left(row_filter.read)
                findings.problem(prefixed(name, message), "tasks" if name else key_of(row_filter))
                has_rows = False
    if sentences:
        findings.figures["rows"] = sentences
    return has_rows


def check_eval_rows(recipe: Recipe, findings: Findings) -> int | None:
    """Record the source and number of each task's evaluation rows, as the figure "evaluation".

    The figure is a list with a sentence for each task. If the run evaluates, missing or unreadable
    rows are also reported as problems or notes; after a problem, there is no figure.

    Returns:
        The number of evaluation rows of all tasks together; `None` if it is unknown.
    """
    if str(recipe.flat["eval_strategy"]) != "no":
        key = "eval_dataset_name" if recipe.run.eval_dataset_name else "eval_strategy"
        read = Findings(elsewhere=findings.elsewhere)  # to be reported below with this key
        read_rows(lambda: eval_rows(recipe, streaming=True), 1, key, read)
        for note in read.notes:
            findings.note(note.message, key)
        reported = {problem.message for problem in findings.problems}  # those of the training rows
        for problem in read.problems:
            if problem.message not in reported:
                findings.problem(problem.message, key)
        if read.problems:
            return None
    sentences = []
    counts = []
    for name, (task, options) in task_options(recipe).items():
        sentence, used = describe_eval_rows(recipe, task, options)
        sentences.append(prefixed(name, sentence))
        counts.append(used)
    findings.figures["evaluation"] = sentences
    known = [used for used in counts if used is not None]
    return sum(known) if len(known) == len(counts) else None


def describe_eval_rows(recipe: Recipe, task: Task, options: Options) -> tuple[str, int | None]:
    """Describe and count the rows that an evaluation uses for one task.

    Args:
        recipe: the whole recipe.
        task: one of its tasks.
        options: the options of this task.

    Returns:
        A pair. The first entry says where the rows come from and, if they are on this machine, how
        many there are, or why there are none. The second entry is the number of rows, which is 0 if
        there are none and `None` if it is unknown.
    """
    open_rows = partial(eval_rows_of, recipe, task, options, streaming=True)
    source = source_of_eval_rows(options)
    findings = Findings(elsewhere=True)
    read_rows(lambda: open_rows().rows, 1, "", findings)
    if findings.problems:
        return f"none: {findings.problems[0].message}", 0
    if findings.notes:
        return f"{source}, which cannot be read here", None
    name = options.eval_dataset_name or options.dataset_name
    if name is not None and not Path(name).expanduser().exists():
        return source, None
    used = count(open_rows())
    if used is None:
        return (
            f"{source}; the number of rows is unknown, because there are too many to count, or "
            "reading them fails or takes too long",
            None,
        )
    first = "the first " if used == options.max_eval_samples else ""
    return f"{source}: {first}{used:,}", used


def count(opened: TaskRows) -> int | None:
    """Return the number of a task's rows, which are counted by reading them.

    Return `None` if there are `MAX_COUNTED` rows or more, or if reading fails or takes too long.
    """
    with suppress(Exception, TooLate), deadline(PATIENCE), quiet("huggingface_hub"):
        used = sum(1 for _ in islice(opened.rows, MAX_COUNTED))
        if used < MAX_COUNTED:
            return used
    return None


def prefixed(name: str, sentence: str) -> str:
    """Prefix a sentence about a task with the task's name, if it has one."""
    return f"{name}: {sentence}" if name else sentence


def key_of(row_filter: RowFilter) -> str:
    """Return the recipe key that a problem with a filter should name.

    This is the limit of a length filter, or `held_out_share` for any other filter.
    """
    if not isinstance(row_filter, LengthFilter):
        return "held_out_share"
    return "max_prompt_tokens" if row_filter.max_prompt_tokens else "max_answer_tokens"
