"""Countdown: make the target from the given numbers, each used exactly once."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grpo_ext.rewards.answers import first_answer, first_span
from grpo_ext.rewards.explanation import Explanation, answer_marks, clip
from grpo_ext.rewards.expression import ExpressionError, evaluate
from grpo_ext.rewards.registry import register

_TOLERANCE = 1e-5


def fault(
    text: str, nums: Sequence[float], target: float, tolerance: float = _TOLERANCE
) -> str | None:
    """Return what is wrong with a completion, as a sentence without its full stop, or None if it is right."""
    answer = first_answer(text)
    if answer is None:
        return "there is no closed <answer> block"
    return fault_of(answer.partition("=")[0], nums, target, tolerance)


def fault_of(
    expression: str, nums: Sequence[float], target: float, tolerance: float = _TOLERANCE
) -> str | None:
    """Return what is wrong with an expression, as for `fault`, or None if it is right."""
    goal = exact(target, "target")
    try:
        numbers, result = evaluate(expression)
    except ExpressionError as error:
        return f"the answer is not a plain expression: {error}"
    used, wanted = sorted(numbers), sorted(exact(number, "nums") for number in nums)
    if used != wanted:
        return f"it uses the numbers {listing(used)}, but it must use {listing(wanted)}, each once"
    if result is None:
        return "it divides by zero"
    right = result == goal or abs(result - goal) <= Fraction(tolerance)
    return None if right else f"its value is {readable(result)}, not {target}"


def exact(number: Any, column: str) -> int | Fraction:
    """Return a number exactly as it is written: 1/10 for 0.1, also from numpy or torch; `TypeError` for anything else."""
    if type(number) is int:
        return number
    try:
        if isinstance(number, str):
            raise ValueError
        return Fraction(str(number.numpy() if hasattr(number, "numpy") else number))
    except (ValueError, ArithmeticError):
        raise TypeError(f"The column `{column}` has {number!r}, which is not a number.") from None


def listing(numbers: Sequence[int | Fraction]) -> str:
    return ", ".join(map(readable, numbers))


def readable(number: int | Fraction) -> str:
    """Format a number: exactly if that is short, else to five digits."""
    text = str(number)
    if len(text) <= 20:
        return text
    try:
        return f"about {float(number):.5g}"
    except OverflowError:
        return f"a number of {len(str(abs(number.numerator // number.denominator)))} digits"


def explain_countdown(
    completion: str, *, nums: Sequence[float], target: float, tolerance: float = _TOLERANCE
) -> Explanation:
    """Return the score of a completion and the reason, in a few lines of text."""
    wrong = fault(completion, nums, target, tolerance)
    lines = []
    answer = first_answer(completion)
    if answer is not None:
        equation, sign, rest = answer.partition("=")
        lines.append(f"Answer read: {clip(equation.strip())}")
        if sign:
            lines.append(f"Ignored, right of the first '=': {clip(rest.strip())}")
    if completion.count("<answer>") > 1:
        lines.append(f"Only the first of {completion.count('<answer>')} <answer> blocks counts.")
    if wrong is None:
        wanted = listing(sorted(exact(number, "nums") for number in nums))
        lines.append(f"It uses {wanted}, each once, and its value is {target}.")
    why = f"0: {wrong}" if wrong else "1: the answer is right"
    return Explanation(
        "\n".join([*lines, f"countdown {why}."]), answer_marks(completion, first_span(completion))
    )


@register("countdown", explain=explain_countdown)
def countdown(
    completions: list[str], nums: list, target: list, *, tolerance: float = _TOLERANCE
) -> list[float]:
    """1 if the first <answer> uses every given number once and makes the target, else 0.

    The reward reads the text left of the first `=`. It allows digits, `+ - * / ( ) .` and white space, without signs in front
    of numbers. The value is exact.

    Args:
        nums: the given numbers, a list for each row.
        target: the number to make.
        tolerance: how far from the target the value may be.
    """
    return [
        float(fault(text, numbers, goal, tolerance) is None)
        for text, numbers, goal in zip(completions, nums, target, strict=True)
    ]
