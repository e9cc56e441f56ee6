"""The `countdown` reward: make the target from the given numbers, using each exactly once."""

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
    """Return why a completion is wrong, or `None` if it is correct.

    The reason is a sentence without a final period. Only the first `<answer>` block counts, up to
    its first `=`.

    Args:
        text: the completion.
        nums: the given numbers.
        target: the number to make.
        tolerance: the maximum absolute difference between the value and the target.

    Raises:
        TypeError: if `target` or an entry of `nums` is not a finite number. They may go unchecked
            if the completion contains no valid expression.
    """
    answer = first_answer(text)
    if answer is None:
        return "there is no closed <answer> block"
    return fault_of(answer.partition("=")[0], nums, target, tolerance)


def fault_of(
    expression: str, nums: Sequence[float], target: float, tolerance: float = _TOLERANCE
) -> str | None:
    """Return why an expression is wrong, or `None` if it is correct.

    The reason is a sentence without a final period.

    Args:
        expression: the expression, such as `(1 + 2) * 3`.
        nums: the given numbers.
        target: the number to make.
        tolerance: the maximum absolute difference between the value and the target.

    Raises:
        TypeError: if `target` or an entry of `nums` is not a finite number. `nums` is not checked
            if the expression is invalid.
    """
    goal = exact(target, "target")
    try:
        numbers, value = evaluate(expression)
    except ExpressionError as error:
        return f"the answer is not a plain expression: {error}"
    used = sorted(numbers)
    required = sorted(exact(number, "nums") for number in nums)
    if used != required:
        return (
            f"it uses the numbers {listing(used)}, but it must use {listing(required)}, each once"
        )
    if value is None:
        return "it divides by zero"
    if value != goal and abs(value - goal) > Fraction(tolerance):
        return f"its value is {readable(value)}, not {target}"
    return None


def exact(number: Any, column: str) -> int | Fraction:
    """Return the exact value of a number as written in decimal: 1/10 for 0.1.

    Args:
        number: a scalar from Python, NumPy or torch.
        column: the column that contains the number, named in the error message.

    Raises:
        TypeError: if `number` is not a finite number. A string is not a number.
    """
    if type(number) is int:
        return number
    try:
        if isinstance(number, str):
            raise ValueError
        if hasattr(number, "numpy"):
            number = number.numpy()
        return Fraction(str(number))
    except (ValueError, ArithmeticError):
        raise TypeError(
            f"The column `{column}` contains {number!r}, which is not a finite number."
        ) from None


def listing(numbers: Sequence[int | Fraction]) -> str:
    return ", ".join(map(readable, numbers))


def readable(number: int | Fraction) -> str:
    """Format a number exactly if that takes at most 20 characters, else to 5 significant digits.

    For a number that is too large for a float, return a phrase that only says how many digits its
    integer part has.
    """
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
    """Explain the score of a completion in a few lines, and mark the answer that was judged.

    Args:
        completion: the completion.
        nums: the given numbers.
        target: the number to make.
        tolerance: the maximum absolute difference between the value and the target.

    Raises:
        TypeError: if `target` or an entry of `nums` is not a finite number. They may go unchecked
            if the completion contains no valid expression.
    """
    lines = []
    answer = first_answer(completion)
    if answer is not None:
        expression, equals_sign, ignored = answer.partition("=")
        lines.append(f"Answer read: {clip(expression.strip())}")
        if equals_sign:
            lines.append(f"Ignored after the first '=': {clip(ignored.strip())}")
    num_blocks = completion.count("<answer>")
    if num_blocks > 1:
        lines.append(f"Only the first of {num_blocks} <answer> blocks counts.")
    reason = fault(completion, nums, target, tolerance)
    if reason is None:
        numbers = listing(sorted(exact(number, "nums") for number in nums))
        lines.append(f"It uses {numbers}, each once, and makes {target}.")
        lines.append("countdown 1: the answer is right.")
    else:
        lines.append(f"countdown 0: {reason}.")
    return Explanation("\n".join(lines), answer_marks(completion, first_span(completion)))


@register("countdown", explain=explain_countdown)
def countdown(
    completions: list[str], nums: list, target: list, *, tolerance: float = _TOLERANCE
) -> list[float]:
    """1 if the first <answer> uses every given number exactly once and makes the target, else 0.

    Only the text before the first `=` in the answer counts. It may have at most 1,000 characters:
    digits, `+ - * / ( ) .` and whitespace, but no signs in front of numbers. At most 100
    parentheses may be open at once. The value is computed exactly.

    Args:
        nums: the given numbers, as a list for each row.
        target: the number to make for each row.
        tolerance: the maximum absolute difference between the value and the target.

    Raises:
        TypeError: if a target or an entry of `nums` is not a finite number. They may go unchecked
            if the completion contains no valid expression.
    """
    scores = []
    for completion, row_nums, row_target in zip(completions, nums, target, strict=True):
        is_right = fault(completion, row_nums, row_target, tolerance) is None
        scores.append(float(is_right))
    return scores
