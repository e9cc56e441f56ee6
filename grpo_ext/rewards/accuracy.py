r"""Accuracy: whether the answer equals the gold answer, as a careful person would judge. docs/rewards.md has the rules.

`extraction` finds the answer in a completion, `notation` removes what only sets the type, `equality` compares.
"""

import re
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import last_answer, last_span, without_thoughts
from grpo_ext.rewards.engine import Unreadable
from grpo_ext.rewards.equality import equal
from grpo_ext.rewards.explanation import Explanation, answer_marks
from grpo_ext.rewards.extraction import MAX_ANSWER, boxed, find_answer, has_words, piece_of
from grpo_ext.rewards.notation import plain
from grpo_ext.rewards.quantity import number, without_label
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.structure import alternatives
from grpo_ext.rewards.tame import is_tame
from grpo_ext.rewards.texts import is_text

_PHRASE = re.compile(
    r"no (?:real )?solutions?|infinite(?:ly many)?(?: number of)? solutions|does not exist|none of (?:these|the above)",
    re.IGNORECASE,
)
_ALPHANUMERIC = re.compile(r"[0-9A-Za-z]")


def explain_accuracy(completion: str, *, solution: str) -> Explanation:
    """Show the gold answer, and mark the answer that was read."""
    return Explanation(
        f"The solution was: {solution}",
        answer_marks(completion, last_span(without_thoughts(completion))),
    )


@register("accuracy", needs_cpu="formulas", explain=explain_accuracy)
def accuracy(completions: list[str], solution: list[str]) -> list[float | None]:
    """1 if the answer equals the gold answer mathematically, else 0; None if the gold answer cannot be read.

    The answer comes after the thoughts: in the last `<answer>` block, else in the last `\\boxed{}`, else after `####` or
    "answer is", else it is the last formula or number. docs/rewards.md says what is equal.

    Args:
        solution: the gold answer: after `####`, in `\\boxed{}`, or plain.
    """
    return [score(text, gold) for text, gold in zip(completions, solution, strict=True)]


def score(completion: str, solution: Any) -> float | None:
    """Return the score of one completion."""
    gold = gold_answer("" if solution is None else str(solution))
    if gold is None:
        return None
    answer = find_answer(completion)
    if answer is None:
        return 0.0 if is_comparable(gold) else None
    try:
        return float(equal(gold, plain(answer)))
    except Unreadable:
        return None


def is_comparable(gold: str) -> bool:
    """Whether other answers than the gold answer itself can be judged."""
    return number(gold) is not None or is_text(gold) or is_tame(gold)


@lru_cache(maxsize=4096)
def gold_answer(solution: str) -> str | None:
    """Return the gold answer in plain notation, or None if the solution clearly has none."""
    _, sign, behind = solution.rpartition("####")
    marked = behind if sign else last_answer(solution) or boxed(solution)
    piece = plain((boxed(marked) or marked) if marked else piece_of(solution) or "")
    if len(piece) > MAX_ANSWER or not _ALPHANUMERIC.search(piece):
        return None
    if number(piece):
        return piece
    if is_text(piece):
        is_short = " " not in piece or _PHRASE.fullmatch(piece) is not None
        return piece if marked or r"\text" in solution or is_short else None
    formulas = " ".join(without_label(part) for part in alternatives(piece))
    return None if has_words(formulas) else piece
