"""Exact arithmetic on untrusted text: digits, `+ - * / ( ) .` and white space, nothing else.

One pass over the tokens, by operator precedence with explicit stacks: no recursion, no `eval`, no float. Values are pairs of a
numerator and a denominator, which is several times faster than `Fraction`. `**`, `//`, signs in front of a number, numbers such
as `007`, and digits of other scripts are errors. The length of the text bounds every result on the way: a number enters a
numerator or denominator at most once, so none has many more digits than the text.
"""

import re
from fractions import Fraction

MAX_LENGTH = 1000  # characters of an expression
MAX_DEPTH = 100  # parentheses open at once

_TOKEN = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+|\*\*|//|[^ \t\r\n\f\v]")
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}

Pair = tuple[
    int, int
]  # numerator and denominator, not in lowest terms; a denominator of 0: there is no value


class ExpressionError(ValueError):
    """The text is not an expression that may be evaluated; the message says where."""


def evaluate(text: str) -> tuple[list[int | Fraction], Fraction | None]:
    """Return the numbers of an expression in their order, and its exact value; `None` if it divides by zero.

    `ExpressionError` for any other text.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters, more than {MAX_LENGTH}")
    numbers: list[int | Fraction] = []
    values: list[Pair] = []
    pending: list[str] = []  # operators and open parentheses
    operand = False  # whether an operand has just ended
    for token in _TOKEN.findall(text):
        if operand == (token not in "+-*/)"):
            if operand and token != "(":
                literal(token)  # raises, if it is not a number
            raise ExpressionError(
                f"{token!r} {'follows a value without an operator' if operand else 'has nothing on its left'}"
            )
        if token in "+-*/":
            while pending and _PRECEDENCE[pending[-1]] >= _PRECEDENCE[token]:
                apply(pending.pop(), values)
            pending.append(token)
            operand = False
        elif token == "(":
            pending.append(token)
            if len(pending) > MAX_DEPTH and pending.count("(") > MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses open at once")
        elif token == ")":
            if "(" not in pending:
                raise ExpressionError("')' closes nothing")
            while (operator := pending.pop()) != "(":
                apply(operator, values)
        else:
            number = literal(token)
            numbers.append(number)
            values.append((number.numerator, number.denominator))
            operand = True
    if not operand:
        raise ExpressionError(
            f"{pending[-1]!r} has nothing on its right" if pending else "there is nothing"
        )
    if "(" in pending:
        raise ExpressionError("a '(' is not closed")
    while pending:
        apply(pending.pop(), values)
    numerator, denominator = values[0]
    return numbers, Fraction(numerator, denominator) if denominator else None


def literal(token: str) -> int | Fraction:
    """Return the exact value of a number."""
    if token.isascii() and token.isdecimal():
        return int(token)
    if "." in token and len(token) > 1:
        return Fraction(token)
    raise ExpressionError(f"{token!r} is not allowed")


def apply(operator: str, values: list[Pair]) -> None:
    """Replace the last two values by the result of an operator; an operand without a value gives none."""
    c, d = values.pop()
    a, b = values.pop()
    if operator == "+":
        result = a * d + c * b, b * d
    elif operator == "-":
        result = a * d - c * b, b * d
    elif operator == "*":
        result = a * c, b * d
    else:
        result = a * d, b * c if d else 0
    values.append(result)
