"""Exact arithmetic on untrusted text: digits, `+ - * / ( ) .` and white space, nothing else.

Python's parser reads the text once a pattern has checked its characters, and the value is computed in fractions. Nothing calls
`eval`, and there is no float. `**`, `//`, signs in front of a number, and numbers such as `007` are errors. The length of the
text bounds every result on the way: a literal enters a numerator or denominator at most once, so none has many more digits
than the text.
"""

import ast
import operator
import re
from fractions import Fraction
from itertools import accumulate
from typing import Any

MAX_LENGTH = 1000  # characters of an expression
MAX_DEPTH = 100  # parentheses open at once

_REFUSED = re.compile(r"[^-+*/(). 0-9]|\*\*|//|(?<![0-9.])0[0-9]+")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class ExpressionError(ValueError):
    """The text is not an expression that may be evaluated; the message says where."""


def parse(text: str) -> ast.expr:
    """Return the tree of an expression, with fractions as its constants; `ExpressionError` for any other text."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters, more than {MAX_LENGTH}")
    text = re.sub(r"[ \t\r\n\f\v]", " ", text).strip(" ")
    if refused := _REFUSED.search(text):
        raise ExpressionError(f"{refused[0]!r} is not allowed")
    if max(accumulate((c == "(") - (c == ")") for c in text), default=0) > MAX_DEPTH:
        raise ExpressionError(f"more than {MAX_DEPTH} parentheses open at once")
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"{error.msg} at character {error.offset}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value is not ...:
            node.value = Fraction(text[node.col_offset : node.end_col_offset])  # type: ignore[assignment]
        elif isinstance(node, ast.expr) and not isinstance(node, ast.BinOp):
            source = str(ast.get_source_segment(text, node))[:40]
            raise ExpressionError(f"{source!r} is not a number or an operation")
    return tree


def literals(tree: ast.expr) -> list[Fraction]:
    """Return the numbers of an expression, in no particular order."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]  # type: ignore[misc]


def value(tree: Any) -> Fraction:
    """Return the exact value; `ZeroDivisionError` if the expression divides by zero."""
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)](value(tree.left), value(tree.right))
    return tree.value
