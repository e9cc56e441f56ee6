"""Accuracy: is the answer mathematically equal to the gold answer?

`find_answer` says which piece of text is the answer, plain numbers are compared exactly, and everything else goes to
math-verify, which parses LaTeX and compares with sympy. Only short and tame pieces get there (see `is_tame`): sympy evaluates
what it is given, and `9^{9^{9}}` would take it forever. Its own time limits are off; those of the guard and of the pool hold.
"""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import last_answer, last_boxed, last_span
from grpo_ext.rewards.explanation import Explanation, answer_marks
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import Example
from grpo_ext.rewards.tame import is_tame

MAX_ANSWER = 300  # characters of an answer
MAX_TAIL = 5_000  # characters at a completion's end in which an answer without tag or box is looked for

_NUMBER = r"[-+]?\$?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?"
_PLAIN = re.compile(_NUMBER)
_LAST_NUMBER = re.compile(rf"(?<![0-9A-Za-z.,]){_NUMBER}(?:\s?/\s?[0-9]+)?(?:\\?%)?(?![0-9A-Za-z])")
_DISPLAY = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_NAMED = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")  # \text{apples}, \begin{pmatrix}
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")

_HALF = {"solution": r"so it is $\frac{1}{2}$"}
_GSM8K = {"solution": "48/2 = <<48/2=24>>24\n48+24 = <<48+24=72>>72\n#### 72"}


def explain_accuracy(completion: str, *, solution: str) -> Explanation:
    """The gold answer beside the answer that was read."""
    return Explanation(f"The solution was: {solution}", answer_marks(completion, last_span(completion)))


@register(
    "accuracy",
    needs_cpu=True,
    explain=explain_accuracy,
    examples=[
        Example(r"It is \boxed{\frac{2}{4}}.", 1.0, _HALF),
        Example("<think>3, no 4</think><answer>72</answer>", 1.0, _GSM8K),
        Example("48 + 24 is $72.00 in all", 1.0, _GSM8K),
        Example(r"<answer>x = \sqrt{8}</answer>", 1.0, {"solution": r"\boxed{2\sqrt{2}}"}),
        Example(r"\boxed{0.5}, or rather \boxed{0.4}", 0.0, _HALF),
        Example("<answer>70 or 72, or 71</answer>", 0.0, _GSM8K),
        Example("", 0.0, _GSM8K),
        Example("no answer here", None, {"solution": "no answer here"}),
    ],
)
def accuracy(completions: list[str], solution: list[str]) -> list[float | None]:
    """1 where the answer equals the gold answer mathematically, else 0; None where the gold answer cannot be read.

    The answer stands in the last `<answer>` block, else in the last `\\boxed{}`, else it is the last formula or number.

    Args:
        solution: the gold answer: after `####`, in `\\boxed{}`, or plain.
    """
    return [score(text, gold) for text, gold in zip(completions, solution, strict=True)]


def score(completion: str, solution: Any) -> float | None:
    """The score of one completion."""
    gold = gold_answer(solution if isinstance(solution, str) else str(solution))
    if gold is None:
        return None
    answer = find_answer(completion)
    return float(answer is not None and equal(gold, answer))


@lru_cache(maxsize=4096)
def gold_answer(solution: str) -> str | None:
    """The gold answer's text, or None if math-verify makes nothing of it."""
    _, sign, behind = solution.rpartition("####")
    piece = piece_of(behind) if sign else boxed(solution) or piece_of(solution)
    return piece if piece is not None and (number(piece) is not None or parse(piece)) else None


def find_answer(completion: str) -> str | None:
    """The text of the answer, at most `MAX_ANSWER` characters, or None."""
    answer = last_answer(completion)
    if answer is not None:
        return None if len(answer) > MAX_TAIL else boxed(answer) or piece_of(answer)
    return boxed(completion) or last_expression(completion[-MAX_TAIL:])


def boxed(text: str) -> str | None:
    """What stands in the last box, unless it is empty or too long."""
    content = (last_boxed(text) or "").strip()
    return content if 0 < len(content) <= MAX_ANSWER else None


def piece_of(text: str) -> str | None:
    """The formula or number in a text that is meant to be an answer: all of it, if it is not a sentence."""
    text = text.strip(" \t\r\n*").removesuffix(".")
    delimited = any(opening in text for opening, _ in _DISPLAY)
    if _PLAIN.fullmatch(text) or not (delimited or has_words(text)):
        return text if 0 < len(text) <= MAX_ANSWER else None
    return last_expression(text)


def has_words(text: str) -> bool:
    """Whether there is plain language in `text`, beside commands and what they name."""
    return _WORD.search(_NAMED.sub("", text)) is not None


def last_expression(text: str) -> str | None:
    """The formula between math delimiters, or the number, that stands last in `text`."""
    end, found = -1, None
    for opening, closing in _DISPLAY:
        stop = text.rfind(closing)
        start = text.rfind(opening, 0, stop) if stop > 0 else -1
        content = text[start + len(opening) : stop].strip() if start >= 0 else ""
        if content and len(content) <= MAX_ANSWER and not has_words(content) and stop > end:
            end, found = stop, content
    numbers = _LAST_NUMBER.findall(text, max(end, 0))
    return numbers[-1] if numbers and len(numbers[-1]) <= MAX_ANSWER else found


def number(piece: str) -> Fraction | None:
    """The value of a plain number such as `-1,234.50` or `$5`, or None."""
    if not _PLAIN.fullmatch(piece):
        return None
    return Fraction(piece.replace(",", "").replace("$", ""))


def equal(gold: str, answer: str) -> bool:
    """Whether two pieces are mathematically equal; numbers to six decimals, as math-verify compares them."""
    x, y = number(gold), number(answer)
    if x is not None and y is not None:
        return round(x, 6) == round(y, 6)
    if gold == answer:
        return True
    a, b = parse(gold), parse(answer)
    if not a or not b or ("%" not in gold + answer and far_apart(a, b)):
        return False
    return bool(load_math_verify().verify(list(a), list(b), timeout_seconds=None))


def far_apart(gold: tuple, answer: tuple) -> bool:
    """Whether two formulas have different values at a point where their symbols get arbitrary numbers.

    It saves math-verify from trying to prove that two unequal formulas are equal, which can take it very long.
    """
    from sympy import Expr

    if len(gold) != 1 or len(answer) != 1 or not all(isinstance(side, Expr) for side in (*gold, *answer)):
        return False
    symbols = sorted(gold[0].free_symbols | answer[0].free_symbols, key=str)
    point = {symbol: 0.618 + 0.271 * place for place, symbol in enumerate(symbols)}
    try:
        a, b = (complex(side.evalf(15, subs=point)) for side in (gold[0], answer[0]))
    except Exception:  # it has no value there
        return False
    return abs(a - b) > 1e-4 * max(1.0, abs(a), abs(b))


@lru_cache(maxsize=4096)
def parse(piece: str) -> tuple:
    """math-verify's reading of a piece, empty if there is none or if it is not tame."""
    if not is_tame(piece):
        return ()
    math_verify = load_math_verify()
    content = piece.strip("$ ")
    return tuple(math_verify.parse(rf"\boxed{{{content}}}", parsing_timeout=None, fallback_mode="no_fallback"))


def load_math_verify() -> Any:
    """The package, without its warnings that time limits are off: they are ours."""
    import math_verify

    for part in ("parser", "grader", "utils"):
        logging.getLogger(f"math_verify.{part}").setLevel(logging.ERROR)
    return math_verify
