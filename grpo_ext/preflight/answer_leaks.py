"""Find prompts that contain their own gold answer."""

import re
from collections.abc import Sequence

from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.rendered_rows import (
    ANSWER_MARKS,
    MAX_SHARE,
    final_answer,
    last_message,
    share_of,
    text_of_prompt,
)
from grpo_ext.recipe.problems import Findings

LONG_ANSWER = 8  # a prompt does not contain an answer of at least this many characters by chance
AT_THE_END = 0.9  # if a larger share of the prompts end with their answer, this is no coincidence


def report_leak(rows: Sequence[Row], column: str, key: str, findings: Findings) -> None:
    """Report prompts that contain the answer.

    It is a problem if most prompts contain their own answer after a marker such as `Answer:`. An
    answer in a text that all prompts share does not count (see `own_answers`).

    Otherwise, it is a note if most prompts contain their answer after a marker, even in a text that
    all prompts share, if most contain an answer of at least `LONG_ANSWER` characters, or if more
    than 90% of them (`AT_THE_END`) end with their answer and the answers are not all equal.

    Args:
        rows: the rows, with their prompts.
        column: the column that contains the answer.
        key: the recipe key that the findings are about.
        findings: receives the problem or note.
    """
    leaks = own_answers(rows, column)
    if share_of(leaks) > MAX_SHARE:
        findings.problem(
            f"the prompt contains the answer in {sum(leaks)} of the first {len(rows)} rows, such "
            f"as row {leaks.index(True) + 1}: the final answer in the column {column!r} follows a "
            "mark such as `####` or `Answer:`. Remove the answer from the prompt.",
            key,
        )
        return
    is_marked = share_of(marks_answer(row, row.get(column)) for row in rows) > MAX_SHARE
    is_contained = share_of(contains_answer(row, column) for row in rows) > MAX_SHARE
    distinct = {str(row.get(column)) for row in rows}
    ends = share_of(ends_with(row, column) for row in rows) > AT_THE_END and len(distinct) > 1
    if is_marked or is_contained or ends:
        findings.note(
            f"the prompt contains the column {column!r} in most rows, and a reward reads it as the "
            "answer. This is fine if the model must choose or quote the answer. Otherwise, remove "
            "the column from the prompt, because the model can copy it.",
            key,
        )


def own_answers(rows: Sequence[Row], column: str) -> list[bool]:
    """Return for each row whether its prompt contains the row's answer (`column`) after a marker.

    An answer does not count if it also follows a marker in the prompt of the next row that has
    another answer, because it is then part of a text that all prompts share, such as `Answer: yes
    or no.` If all rows have the same answer, the result is `False` for each of them.
    """
    answers = [final_answer(row.get(column)) for row in rows]
    flags = []
    for at, row in enumerate(rows):
        gold = row.get(column)
        others = [*range(at + 1, len(rows)), *range(at)]
        other = next((i for i in others if answers[i] != answers[at]), None)
        is_own = other is not None and not marks_answer(rows[other], gold)
        flags.append(is_own and marks_answer(row, gold))
    return flags


def marks_answer(row: Row, gold: object) -> bool:
    r"""Return whether a row's prompt gives away the final answer of `gold`.

    The answer counts only after a marker such as `####`, `\boxed{` or `answer is`. If `gold` is a
    worked solution with such a marker, a prompt that contains all of `gold` also counts. Return
    `False` if `gold` is blank or not a string.
    """
    if not isinstance(gold, str) or not gold.strip():
        return False
    prompt = text_of_prompt(row["prompt"])
    if any(mark in gold for mark in ANSWER_MARKS) and gold.strip() in prompt:
        return True
    final = re.escape(str(final_answer(gold)).strip())
    mark = r"(?:####|\\boxed\{|answer is:?|answer:|</think>)"
    return re.search(rf"(?i){mark}[\s$*]*{final}(?!\w|[.,]\d)", prompt) is not None


def contains_answer(row: Row, column: str) -> bool:
    """Return whether a row's prompt contains the row's answer, which is stored in `column`.

    If the answer is a list, it is enough that the prompt contains one of its entries. Only strings
    of at least `LONG_ANSWER` characters count.
    """
    golds = row.get(column)
    texts = golds if isinstance(golds, list) else [golds]
    prompt = text_of_prompt(row["prompt"])
    for text in texts:
        if isinstance(text, str) and len(text.strip()) >= LONG_ANSWER and text.strip() in prompt:
            return True
    return False


def ends_with(row: Row, column: str) -> bool:
    """Return whether a row's prompt ends with the value in `column` as a separate word.

    Return `False` if the value is missing or blank.
    """
    gold = "" if row.get(column) is None else str(row[column]).strip()
    text = last_message(row["prompt"]).strip()
    if not gold or not text.endswith(gold):
        return False
    return text == gold or not text[-len(gold) - 1].isalnum()
