"""Which texts the scorers of `reasoning_gym` may evaluate as Python.

Nine of its scorers pass the answer to `eval` or to sympy's parser, which calls `eval`, and five do
so with a part of the problem. Both come from outside, so a text must match the pattern of its
scorer: lists of words and numbers, or formulas without texts, attributes and large powers.
"""

import re
from collections.abc import Mapping
from typing import Any

_LIST = re.compile(r"[\w\s\[\],'\"-]*")
_NUMBERS = re.compile(r"[-+.\deE\s\[\],'\"]*")
_INTEGERS = re.compile(r"(?:0x[\da-fA-F]+|[\d\s()+*&|^~<>-])*")
# sympy evaluates texts again, so formulas have none; they have no attributes and few functions.
_FUNCTION = r"(?<![A-Za-z_])(?:[A-Za-z]|a?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt)(?![A-Za-z_])"
_FORMULA = re.compile(
    rf"(?:[-+/(), 0-9]|\*(?!\*[ (]*(?:[0-9]{{3}}|[^-+*/,]*\*\*))|\.(?=[0-9])|{_FUNCTION})*"
)

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
    """Return whether the scorer of a generator may get this answer."""
    pattern = ANSWERS.get(generator)
    return pattern is None or pattern.fullmatch(answer) is not None


def check_problem(entry: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a problem has a text that its scorer must not evaluate."""
    generator = entry["generator"]
    if generator not in PROBLEMS:
        return
    key, pattern = PROBLEMS[generator]
    text = entry["answer"] if key == "answer" else entry["metadata"].get(key)
    if not isinstance(text, str) or pattern.fullmatch(text) is None:
        raise ValueError(
            f"entry: the {key} of a problem of {generator} is {str(text)[:80]!r}, which its scorer "
            "would run as Python. Use rows that the task reasoning_gym makes."
        )
