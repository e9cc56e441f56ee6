"""Add to a prompt whatever its question still needs: contexts, options, class names or a test."""

import re
from dataclasses import dataclass, replace

from grpo_ext.common.columns import CONTEXTS
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.option_columns import Options, find_options
from grpo_ext.preflight.proposal import Proposal
from grpo_ext.preflight.proposed_reward import TESTS, Golds, find_golds, first_of, most, usual_names
from grpo_ext.preflight.question_columns import is_text_column
from grpo_ext.preflight.try_code import names_functions
from grpo_ext.tasks.prompts import TO_DO
from grpo_ext.tasks.templates import literal

# Usual names of question columns whose texts do not say what to do with them.
VAGUE = ("text", "input")
LABELS = ("label", "labels", "class", "target")  # usual names of the column with the class
MOST_CLASSES = 12  # maximum number of distinct answers that are listed in a prompt
ROWS_OF_CLASS = 3  # minimum mean number of rows per distinct answer for answers to count as classes


@dataclass(frozen=True)
class Addition:
    """What to add to a prompt besides the question and its contexts; by default, nothing.

    Attributes:
        before: a template paragraph before the question.
        lines: template lines directly after the question or, if there are contexts, directly after
            the last context.
        after: a template paragraph at the end of the prompt.
        open_question: a question that the user must answer; an empty string if there is none.
        says_task: whether the addition tells the model what to do.
        reward: the reward to use with the extended prompt; `None` keeps the proposed one.
    """

    before: str = ""
    lines: str = ""
    after: str = ""
    open_question: str = ""
    says_task: bool = False
    reward: str | None = None


def with_whole_prompt(
    proposal: Proposal, rows: list[Row], others: list[str], gold: str | None = None
) -> Proposal:
    """Return a copy of the proposal whose prompt contains everything the question needs.

    The prompt may receive contexts (such as Alpaca's `input`), options, the names of classes, or a
    test that names the function to write. Whatever is still unclear becomes one of the proposal's
    questions for the user, and may also be marked with `TO DO` in the prompt. If the answers turn
    out to be numbered classes, the reward becomes `exact`.

    Args:
        proposal: a proposal whose prompt is a column of strings.
        rows: the first rows.
        others: the columns other than the question.
        gold: the column of the gold answers, if the user has named it.
    """
    column = proposal.prompt
    golds = find_golds(rows, others, gold)
    fields = [f"{{{column}}}"]
    for name in usual_names(CONTEXTS, others):
        is_gold = golds is not None and name == golds.column
        if not is_gold and is_text_column(rows, name):
            fields.append(f"{{{name}}}")
    addition = addition_to(proposal, rows, others, golds)
    if column in VAGUE and not addition.says_task:
        addition = replace(
            addition,
            before=f"{TO_DO} the model should do with this text.",
            open_question=f"What should the model do with {column}? Say so in user_prompt.",
        )
    if addition.lines:
        fields[-1] += f"\n{addition.lines}"
    parts = [part for part in (addition.before, *fields, addition.after) if part]
    questions = [*proposal.questions]
    if addition.open_question:
        questions.append(addition.open_question)
    return replace(
        proposal,
        prompt="\n\n".join(parts),
        reward=addition.reward or proposal.reward,
        questions=questions,
    )


def addition_to(
    proposal: Proposal, rows: list[Row], others: list[str], golds: Golds | None
) -> Addition:
    """Return what to add to the prompt besides the question and its contexts.

    Args:
        proposal: a proposal whose prompt is a column of strings.
        rows: the first rows.
        others: the columns other than the question.
        golds: the gold answers in the columns `others`, if there are any.
    """
    options = find_options(rows, others)
    if proposal.reward == "choice":
        return addition_of_options(options, rows, proposal.prompt)
    if options is not None and answers_are_options(golds, options):
        return Addition(lines=options.unlettered)
    tests = first_of(TESTS, others)
    if proposal.reward == "code" and tests is not None:
        return Addition(after=example_of_tests(rows, proposal.prompt, tests), says_task=True)
    if golds is not None and proposal.reward in ("exact", "number"):
        return addition_of_classes(golds, rows)
    return Addition()


def addition_of_options(options: Options | None, rows: list[Row], question: str) -> Addition:
    """Return an addition that lists the options with letters, or asks the user where they are.

    If no column contains the options, but at least 90% of the questions already list them, the
    addition is empty.

    Args:
        options: the options in the columns of the rows; `None` if there are none.
        rows: the first rows.
        question: the column of the question.
    """
    if options is not None:
        return Addition(lines=options.template)
    if lists_options(rows, question):
        return Addition()
    return Addition(
        open_question="Where are the options of the question? The prompt has to list them."
    )


def addition_of_classes(golds: Golds, rows: list[Row]) -> Addition:
    """Return an addition that lists the classes and, if they are numbered, asks what they mean.

    The addition is empty if the gold answers are not the classes of a classification task.
    """
    classes = classes_of(golds, rows)
    if not classes:
        return Addition()
    names = ", ".join(classes)
    if not is_numbered(golds, classes):
        return Addition(after=f"Answer with one of: {literal(names)}.", says_task=True)
    return Addition(
        before=f"{TO_DO} the numbers mean: {names}",
        open_question=(
            f"What do the numbers of {golds.column} mean ({names})? Write their meanings into "
            "user_prompt."
        ),
        says_task=True,
        reward="exact",
    )


def lists_options(rows: list[Row], question: str) -> bool:
    """Return whether at least 90% of the questions list an option A, marked as in `A)`."""
    return most(re.search(r"\bA[).:\]]", str(row.get(question))) for row in rows)


def answers_are_options(golds: Golds | None, options: Options) -> bool:
    """Return whether at least 90% of the gold answers equal the text of an option in their row.

    Return `False` if there are no gold answers, or if a row has none.
    """
    if golds is None or len(golds.texts) != len(options.texts):
        return False
    pairs = zip(golds.texts, options.texts, strict=True)
    return most(gold in texts for gold, texts in pairs)


def classes_of(golds: Golds, rows: list[Row]) -> list[str]:
    """Return the distinct answers, sorted, if they look like classes; else an empty list.

    Classes are the possible answers of a classification task. There must be at least two and at
    most `MOST_CLASSES` of them, with at least `ROWS_OF_CLASS` rows each on average. If all answers
    are whole numbers, they are classes only in a column whose name is in `LABELS`. If some rows
    have lists of answers, there are no classes.
    """
    classes = sorted(set(golds.texts))
    is_label = golds.column.lower() in LABELS
    are_numbers = all(text.lstrip("-").isdecimal() for text in classes)
    if golds.are_lists or (are_numbers and not is_label):
        return []
    if not 2 <= len(classes) <= MOST_CLASSES or len(rows) < ROWS_OF_CLASS * len(classes):
        return []
    return classes


def is_numbered(golds: Golds, classes: list[str]) -> bool:
    """Return whether the classes are unsigned numbers in a column whose name is in `LABELS`."""
    return golds.column.lower() in LABELS and all(text.isdecimal() for text in classes)


def example_of_tests(rows: list[Row], question: str, tests: str) -> str:
    """Return a template paragraph that shows a row's first test.

    Return an empty string if at least 90% of the questions already name a function that their
    tests call, or if the tests of a row are not a list that begins with a string.

    Args:
        rows: the first rows.
        question: the column of the question.
        tests: the column of the tests.
    """
    lists = [row.get(tests) for row in rows]
    if not all(isinstance(value, list) and value and isinstance(value[0], str) for value in lists):
        return ""
    if most(names_functions(str(row.get(question)), row[tests]) for row in rows):
        return ""
    return f"The program must pass tests such as this one:\n{{{tests}[0]}}"
