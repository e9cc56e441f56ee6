"""Canonical texts for values: two texts are equal if and only if the values are equal in Python.

There is one exception: the text of a `Counter` with counts of 0 differs from the text of the
`Counter` without these keys, although the two are equal.

A program's values and the expected values are compared by these texts, so that no program's output
is parsed, hashed or unpickled outside the sandbox. Only plain data has a text.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, KeysView
from typing import Any


class NotPlain(ValueError):
    """Raised if a value has no canonical text."""


def canonical(value: Any, expected: bool = False) -> str:
    """Return a text that two values share if and only if they are equal in Python.

    The module docstring states the one exception. Finite real numbers become exact fractions, so
    `1`, `1.0` and `True` share a text; a complex number whose imaginary part is not 0 becomes a
    pair. An instance of a subclass is treated as an instance of its built-in type: a `Counter` is a
    dict, and a namedtuple is a tuple.

    Args:
        value: None, a number, string, bytes, bytearray or range, or a list, tuple, set, frozenset,
            dict, `dict.keys()` or deque of such values.
        expected: whether the value is an expected value. An `OrderedDict` then has no text, because
            its equality depends on the other operand.

    Raises:
        NotPlain: if the value is or contains NaN, an object of any other type, or, with `expected`,
            an `OrderedDict`.
        RecursionError: if the value contains itself or is nested too deeply.
    """
    if value is None:
        return "None"
    if isinstance(value, str):
        return json.dumps(str.__str__(value))
    if isinstance(value, bytes | bytearray):
        return f"bytes({bytes(value).hex()})"
    if isinstance(value, list):
        return f"[{joined(list.__iter__(value), expected)}]"
    if isinstance(value, tuple):
        return f"({joined(tuple.__iter__(value), expected)})"
    if isinstance(value, deque):
        return f"deque[{joined(deque.__iter__(value), expected)}]"
    if isinstance(value, set | frozenset | KeysView):
        return f"{{{','.join(sorted(canonical(element, expected) for element in value))}}}"
    if isinstance(value, dict):
        return canonical_dict(value, expected)
    if isinstance(value, range):
        return canonical_range(value)
    if isinstance(value, complex):
        return canonical_complex(value)
    return canonical_number(value)


def joined(elements: Iterable[Any], expected: bool) -> str:
    return ",".join(canonical(element, expected) for element in elements)


def canonical_dict(value: dict[Any, Any], expected: bool) -> str:
    if expected and isinstance(value, OrderedDict):
        raise NotPlain("OrderedDict")
    pairs = [
        f"{canonical(key, expected)}:{canonical(entry, expected)}"
        for key, entry in dict.items(value)
    ]
    return f"dict{{{','.join(sorted(pairs))}}}"


def canonical_range(value: range) -> str:
    """Return a text that is the same for all ranges of the same numbers."""
    if len(value) == 0:
        return "range()"
    if len(value) == 1:
        return f"range({value.start})"
    return f"range({value[0]},{value[-1]},{value.step})"


def canonical_complex(value: complex) -> str:
    if value.imag == 0:
        return canonical_number(value.real)
    return f"complex({canonical_number(value.real)},{canonical_number(value.imag)})"


def canonical_number(value: Any) -> str:
    """Return a number's exact fraction in hexadecimal; "inf" or "-inf" if it is infinite.

    A number is an int, float, `Fraction`, `Decimal` or another object with `as_integer_ratio`.

    Raises:
        NotPlain: if the value is anything else, or NaN.
    """
    try:
        numerator, denominator = value.as_integer_ratio()
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    except (AttributeError, TypeError, ValueError) as error:
        raise NotPlain(type(value).__name__) from error
    if denominator == 1:
        return f"{numerator:x}"
    return f"{numerator:x}/{denominator:x}"
