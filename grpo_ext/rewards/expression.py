"""Evaluate untrusted arithmetic exactly: digits, `+ - * / ( ) .` and whitespace, nothing else.

The evaluator makes one pass over the tokens, using operator precedence and explicit stacks, without
recursion, `eval` or floats. Values are (numerator, denominator) pairs, which are several times
faster than `Fraction`. `**`, `//`, signs in front of a number, numbers such as `007`, and digits of
other scripts are errors. The length of the text bounds every intermediate value: each number enters
a numerator or denominator at most once, so neither has many more digits than the text.
"""

import re
from fractions import Fraction

MAX_LENGTH = 1000  # characters of an expression
MAX_DEPTH = 100  # nested parentheses

_TOKEN = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+|\*\*|//|[^ \t\r\n\f\v]")
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}

# (numerator, denominator), not in lowest terms. A denominator of 0 means that there is no value.
Pair = tuple[int, int]


class ExpressionError(ValueError):
    """Raised if a string is not a valid expression or exceeds a limit; the message says why."""


def evaluate(text: str) -> tuple[list[int | Fraction], Fraction | None]:
    """Return the numbers in an expression, in order, and its exact value.

    The value is `None` if the expression divides by zero.

    Raises:
        ExpressionError: if the text is not a valid expression, is longer than `MAX_LENGTH`, or has
            more than `MAX_DEPTH` parentheses open at once.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters exceed the limit of {MAX_LENGTH}")
    numbers: list[int | Fraction] = []
    values: list[Pair] = []
    pending: list[str] = []  # operators and open parentheses
    after_operand = False
    for token in _TOKEN.findall(text):
        needs_operand = token in "+-*/)"
        if needs_operand and not after_operand:
            raise ExpressionError(f"{token!r} has no value on its left")
        if after_operand and not needs_operand:
            if token != "(":
                literal(token)  # raises if it is not a number
            raise ExpressionError(f"{token!r} follows a value without an operator")
        if token in "+-*/":
            while pending and _PRECEDENCE[pending[-1]] >= _PRECEDENCE[token]:
                apply(pending.pop(), values)
            pending.append(token)
            after_operand = False
        elif token == "(":
            pending.append(token)
            if len(pending) > MAX_DEPTH and pending.count("(") > MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses are open at once")
        elif token == ")":
            if "(" not in pending:
                raise ExpressionError("a ')' has no matching '('")
            while pending[-1] != "(":
                apply(pending.pop(), values)
            pending.pop()
        else:
            number = literal(token)
            numbers.append(number)
            values.append((number.numerator, number.denominator))
            after_operand = True
    if not after_operand:
        if pending:
            raise ExpressionError(f"{pending[-1]!r} has nothing on its right")
        raise ExpressionError("the text is empty")
    if "(" in pending:
        raise ExpressionError("a '(' is not closed")
    while pending:
        apply(pending.pop(), values)
    numerator, denominator = values[0]
    if denominator == 0:
        return numbers, None
    return numbers, Fraction(numerator, denominator)


def literal(token: str) -> int | Fraction:
    """Return the exact value of a number; raise `ExpressionError` for any other token."""
    if token.isascii() and token.isdecimal():
        return int(token)
    if "." in token and len(token) > 1:
        return Fraction(token)
    raise ExpressionError(f"{token!r} is not allowed")


def apply(operator: str, values: list[Pair]) -> None:
    """Replace the last two entries of `values` with the result of an operator, in place.

    The denominator of the result is 0 if the operation divides by zero or an operand has no value.
    """
    c, d = values.pop()
    a, b = values.pop()
    if operator == "+":
        values.append((a * d + c * b, b * d))
    elif operator == "-":
        values.append((a * d - c * b, b * d))
    elif operator == "*":
        values.append((a * c, b * d))
    else:
        values.append((a * d, b * c if d else 0))
