"""Restrict the strings that the scorers of `reasoning_gym` evaluate as Python.

Nine of its scorers pass the answer to `eval` or to sympy's parser, which calls `eval`, and five do
so with a part of the problem. Both are untrusted, so each must match a pattern: lists of words and
numbers, or formulas without strings, attributes and large powers. A power has an exponent of at
most two digits, a fraction or a letter, and few powers have a power or a sum as their base, so that
no number becomes large enough to exhaust time or memory.
"""

import re
from collections.abc import Mapping
from typing import Any

_LIST = re.compile(r"[\w\s\[\],'\"-]*")
_NUMBERS = re.compile(r"[-+.\deE\s\[\],'\"]*")
_INTEGERS = re.compile(r"(?:0x[\da-fA-F]+|[\d\s()+*&|^~<>-])*")
# sympy evaluates texts again, so formulas have none; they have no attributes and few functions.
_FUNCTION = r"(?<![A-Za-z_])(?:[A-Za-z]|a?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt)(?![A-Za-z_])"
_EXPONENT = r"(?:[0-9]{1,2}|\(-?[0-9]{1,2}(?:/[0-9]{1,2})?\)|[A-Za-z])(?![0-9A-Za-z.]| *\*\*)"
_FORMULA = re.compile(rf"(?:[-+/(), 0-9]|\*(?!\*)|\*\* ?{_EXPONENT}|\.(?=[0-9])|{_FUNCTION})*")
_POWER_OF_BRACKETS = re.compile(r"\) *\*\*")
MAX_POWERS_OF_BRACKETS = 3
MAX_CHARACTERS = 2000

ANSWERS: dict[str, re.Pattern[str]] = {
    "binary_matrix": _LIST,
    "countdown": _FORMULA,
    "intermediate_integration": _FORMULA,
    "n_queens": _LIST,
    "polynomial_multiplication": _FORMULA,
    "puzzle24": _FORMULA,
    "simple_integration": _FORMULA,
    "spiral_matrix": _LIST,
    "string_insertion": _LIST,
}
# By generator, the part of the problem that its scorer evaluates: `answer`, or a key of `metadata`.
PROBLEMS: dict[str, tuple[str, re.Pattern[str]]] = {
    "bitwise_arithmetic": ("problem", _INTEGERS),
    "intermediate_integration": ("integrand", _FORMULA),
    "number_sorting": ("answer", _NUMBERS),
    "polynomial_multiplication": ("answer", _FORMULA),
    "simple_integration": ("integrand", _FORMULA),
}


def may_score(generator: str, answer: str) -> bool:
    """Return whether it is safe to pass this answer to the scorer of a generator."""
    pattern = ANSWERS.get(generator)
    return pattern is None or matches(pattern, answer)


def matches(pattern: re.Pattern[str], text: str) -> bool:
    """Return whether a text matches a pattern.

    A formula must also be short, with few powers of brackets.
    """
    if pattern is not _FORMULA:
        return pattern.fullmatch(text) is not None
    num_powers = len(_POWER_OF_BRACKETS.findall(text))
    if len(text) > MAX_CHARACTERS or num_powers > MAX_POWERS_OF_BRACKETS:
        return False
    return pattern.fullmatch(text) is not None


def check_problem(entry: Mapping[str, Any]) -> None:
    """Raise `ValueError` if the part of a problem that its scorer runs is unsafe or missing."""
    generator = entry["generator"]
    if generator not in PROBLEMS:
        return
    key, pattern = PROBLEMS[generator]
    text = entry["answer"] if key == "answer" else entry["metadata"].get(key)
    if not isinstance(text, str) or not matches(pattern, text):
        raise ValueError(
            f"entry: in a problem of {generator}, `{key}` is missing or unsafe: "
            f"{str(text)[:80]!r}. The scorer would run it as Python. Use rows that the task "
            "reasoning_gym makes."
        )
