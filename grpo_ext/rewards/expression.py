"""Exact arithmetic on untrusted text: digits, `+ - * / ( ) .` and white space, nothing else.

The text is parsed into postfix order (the expression's tree, children first) by operator precedence on an explicit
stack, and evaluated in fractions. There is no recursion, no `eval`, no float. `**`, `//`, signs in front of a number,
`1_000` and digits of other scripts are errors. The length of the text bounds every result on the way: a literal enters
a numerator or denominator at most once, so none has many more digits than the text.
"""

import operator
import re
from fractions import Fraction

MAX_LENGTH = 1000  # characters of an expression
MAX_DEPTH = 100  # parentheses open at once

_TOKEN = re.compile(r"(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+|[-+*/()]|[^ \t\r\n\f\v]")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}

# An expression in postfix order: its literals and its operators.
Postfix = list[Fraction | str]


class ExpressionError(ValueError):
    """The text is not an expression that may be evaluated; the message says where."""


def parse(text: str) -> Postfix:
    """The expression of `text` in postfix order; `ExpressionError` if it is none, or beyond the limits."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters, more than {MAX_LENGTH}")
    output: Postfix = []
    pending: list[str] = []  # operators and open parentheses
    depth = 0
    operand = False  # whether an operand has just ended
    for token in _TOKEN.findall(text):
        if operand == (token not in "+-*/)"):
            wrong = "follows a value without an operator" if operand else "has nothing on its left"
            raise ExpressionError(f"{token!r} {wrong}")
        if token in "+-*/":
            precedence = _PRECEDENCE[token]
            while pending and _PRECEDENCE[pending[-1]] >= precedence:
                output.append(pending.pop())
            pending.append(token)
            operand = False
        elif token == "(":
            depth += 1
            if depth > MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses open at once")
            pending.append(token)
        elif token == ")":
            if not depth:
                raise ExpressionError("')' closes nothing")
            while pending[-1] != "(":
                output.append(pending.pop())
            pending.pop()
            depth -= 1
        elif len(token) == 1 and token not in "0123456789":
            raise ExpressionError(f"{token!r} is not allowed here")
        else:
            output.append(Fraction(token))
            operand = True
    if not operand:
        raise ExpressionError(f"{pending[-1]!r} has nothing on its right" if pending else "nothing there")
    if depth:
        raise ExpressionError("a '(' is not closed")
    output.extend(reversed(pending))
    return output


def literals(postfix: Postfix) -> list[Fraction]:
    """The numbers of an expression, in the order in which they are written."""
    return [item for item in postfix if not isinstance(item, str)]


def value(postfix: Postfix) -> Fraction:
    """The exact value; `ZeroDivisionError` if it divides by zero."""
    stack: list[Fraction] = []
    for item in postfix:
        if isinstance(item, str):
            right, left = stack.pop(), stack.pop()
            stack.append(_OPERATIONS[item](left, right))
        else:
            stack.append(item)
    return stack[0]
