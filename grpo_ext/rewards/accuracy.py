"""The `accuracy` reward: compares an answer with the gold answer as a careful person would.

`extraction` finds the answer in a completion, `notation` removes formatting, and `equality`
compares the answers. docs/rewards.md lists the rules.
"""

import re
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import last_answer, last_span, without_thoughts
from grpo_ext.rewards.arrangement import is_list_for_interval
from grpo_ext.rewards.dates import date_of
from grpo_ext.rewards.engine import Unreadable
from grpo_ext.rewards.equality import equal
from grpo_ext.rewards.explanation import Explanation, answer_marks
from grpo_ext.rewards.extraction import boxed, find_answer, is_marked, piece_of
from grpo_ext.rewards.formula_limits import is_within_limits
from grpo_ext.rewards.last_expression import MAX_ANSWER, has_words
from grpo_ext.rewards.notation import plain, typography
from grpo_ext.rewards.quantity import number, without_label
from grpo_ext.rewards.question import (
    Question,
    arranged,
    asked_value,
    chosen_contents,
    has_asked_dimension,
    has_asked_form,
    has_asked_percent,
    in_asked_multiple,
    in_asked_unit,
    is_unfinished,
    question_of,
    repeats,
    restates,
)
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.structure import alternatives
from grpo_ext.rewards.texts import (
    content_of,
    is_proper_name,
    is_text,
    letter_of,
    numbered_content,
    option,
)

_PHRASE = re.compile(
    r"no (?:real )?solutions?|infinite(?:ly many)?(?: number of)? solutions|does not exist|none "
    r"of (?:these|the above)",
    re.IGNORECASE,
)
_ALPHANUMERIC = re.compile(r"[0-9A-Za-z]")


def explain_accuracy(completion: str, *, solution: Any) -> Explanation:
    """Return an explanation that states the gold answer, with a mark on the last `<answer>` block.

    Nothing is marked if there is no closed block outside the thoughts, or if the last one is blank.
    """
    gold = None if solution is None else gold_answer(str(solution))
    text = "The solution has no clear answer." if gold is None else f"The gold answer was: {gold}"
    return Explanation(
        text,
        answer_marks(completion, last_span(without_thoughts(completion))),
    )


@register("accuracy", needs_cpu="formulas", explain=explain_accuracy)
def accuracy(
    completions: list[str], solution: list[str], prompts: list[Any] | None = None
) -> list[float | None]:
    r"""1 if the answer equals the gold answer mathematically, else 0.

    `None` if the solution is missing or contains no clear answer, or if its answer must be parsed
    for the comparison but cannot be.

    The answer is searched for outside the `<think>` blocks. It is taken from the last `<answer>`
    block; if there is none, from the last `\boxed{}`; and if there is none either, from the end of
    the text. There it may be marked by `####`, "answer is" or "answer:"; otherwise, it is the last
    formula, number or choice, or an answer in words.

    docs/rewards.md lists which answers count as equal. If the prompts are given, the choices in the
    question and the unit and form that it asks for are taken into account, and an answer that only
    repeats a formula of the question scores 0, unless the gold answer does so too.

    Args:
        solution: the gold answer for each row, or a worked solution that marks it with `####`,
            `\boxed{}` or `<answer>`.
        prompts: the prompts, from which the questions are parsed; `None` if they are unknown.
    """
    if prompts is None:
        prompts = [None] * len(completions)
    return [
        score(text, gold, prompt)
        for text, gold, prompt in zip(completions, solution, prompts, strict=True)
    ]


def score(completion: str, solution: Any, prompt: Any = None) -> float | None:
    """Score one completion: 1 if its answer is right, else 0.

    Return `None` if the solution is missing or contains no clear answer, or if its answer must be
    parsed for the comparison but cannot be. A completion without an answer scores 0 if the gold
    answer is comparable (see `is_comparable`); otherwise, return `None`.

    Args:
        completion: the text of the completion.
        solution: the gold answer, or text that contains it; `None` if it is missing.
        prompt: the prompt as a string or a list of messages; `None` if it is unknown.

    Raises:
        NeedsEngine: inside `engine.without_engine`, if the comparison needs the formula engine.
    """
    gold = None if solution is None else gold_answer(str(solution))
    if gold is None:
        return None
    question = question_of(prompt)
    gold_content = question.content(letter_of(gold)) or content_of(gold)
    answer = find_answer(
        completion,
        has_choices=bool(question.choices) or letter_of(gold) is not None,
        in_words=is_text(gold_content),
        choices=[content for _, content in question.choices],
        request=question.request,
    )
    if answer is None and is_comparable(gold):
        return 0.0
    if answer is None:
        return None
    marked = is_marked(completion)
    try:
        return float(is_right(question, str(solution), gold, plain(answer), marked))
    except Unreadable:
        return None


def is_right(question: Question, solution: str, gold: str, answer: str, marked: bool) -> bool:
    r"""Return whether an answer equals the gold answer and answers the question as asked.

    Args:
        question: the parsed question.
        solution: the whole solution that contains the gold answer.
        gold: the gold answer, as returned by `notation.plain`.
        answer: the answer, as returned by `notation.plain`.
        marked: whether the completion marks its answer, for example with `\boxed{}`.

    Raises:
        Unreadable: if the gold answer must be parsed for the comparison but cannot be.
        NeedsEngine: inside `engine.without_engine`, if the comparison needs the formula engine.
    """
    if typography(gold) == typography(answer):
        return True
    contents = chosen_contents(question, gold, answer)
    if contents is not None:
        return equal(plain(contents[0]), plain(contents[1]))
    if restates(question, answer) and not restates(question, gold):
        return False
    answer = asked_value(question, gold, answer)
    if is_unfinished(question, gold, answer, is_marked=marked) or repeats(question, gold, answer):
        return False
    if not has_asked_form(question, gold, answer):
        return False
    if is_list_for_interval(question.arrangement, gold, answer):
        return False
    if not has_asked_dimension(question, answer) or not has_asked_percent(question, gold, answer):
        return False
    measured = in_asked_unit(question, gold, answer, solution)
    return equal(*arranged(question, measured, in_asked_multiple(question, gold, answer)))


def is_comparable(gold: str) -> bool:
    """Return whether a gold answer can be compared with other answers.

    It must be a number, a date, words, or a formula that passes `is_within_limits`.
    """
    is_read = number(gold) is not None or date_of(gold) is not None
    return is_read or is_text(gold) or is_within_limits(gold)


@lru_cache(maxsize=4096)
def gold_answer(solution: str) -> str | None:
    r"""Return the gold answer in a solution, normalized by `notation.plain`.

    Return `None` if the solution has no clear answer, that is, if the text found is longer than
    `MAX_ANSWER`, contains no letter or digit, or has words around a number or formula (see
    `has_words`). An answer of several words must be marked (with `####`, `\boxed{}`, `<answer>` or
    `\text{}`) or be a name or a phrase such as "no solution"; otherwise, `None` is returned.
    """
    _, sign, behind = solution.rpartition("####")
    marked = last_answer(solution) or boxed(solution)
    if sign:
        marked = behind
    elif marked is None and is_text(numbered_content(solution.strip()) or ""):
        marked = solution  # `(2) Mars`
    text = (boxed(marked) or marked) if marked else piece_of(solution)
    answer = plain(text or "")
    if len(answer) > MAX_ANSWER or not _ALPHANUMERIC.search(answer):
        return None
    if number(answer) or date_of(answer) or option(answer):
        return answer
    if is_text(answer):
        is_phrase = _PHRASE.fullmatch(answer) is not None or is_proper_name(answer)
        if not marked and r"\text" not in solution and " " in answer and not is_phrase:
            return None
        return answer
    formulas = " ".join(without_label(part) for part in alternatives(answer))
    if has_words(formulas):
        return None
    return answer
