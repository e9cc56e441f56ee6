"""Write and read one line of a log as strict JSON.

Reading an untrusted line either returns a row or raises `ValueError` or `RecursionError`.
"""

import json
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any

DEEPEST = 16  # maximum nesting depth of a line
FieldType = type | UnionType  # the second argument of `isinstance`


def encoded(row: dict[str, Any]) -> bytes:
    """Return a row as one line of strict JSON in UTF-8.

    Numbers that are not finite become null and are listed under `not_finite`.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # replace non-finite numbers only if needed, because most rows have none
        not_finite: dict[str, str] = {}
        row = {**finite(row, "", not_finite), "not_finite": not_finite}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # Lone surrogates become JSON escapes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """Convert a NumPy or torch number to a Python number, and any other value to text."""
    try:
        return value.item()
    except Exception:  # an array, or not a number at all
        return str(value)


def finite(value: object, path: str, not_finite: dict[str, str]) -> Any:
    """Return a copy of `value` with `None` in place of numbers that are not finite.

    Args:
        value: any JSON value, which may contain NumPy and torch numbers.
        path: the path of `value` in the row, such as `rewards/a`; empty for the row itself.
        not_finite: receives the replaced numbers as text, by path.
    """
    prefix = f"{path}/" if path else ""
    if isinstance(value, dict):
        return {key: finite(entry, f"{prefix}{key}", not_finite) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry, f"{prefix}{i}", not_finite) for i, entry in enumerate(value)]
    if not isinstance(value, str | int | float | bool | None):
        value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        not_finite[path] = str(value)
        return None
    return value


def row_of(line: bytes | str, fields: Mapping[str, FieldType] | None = None) -> dict[str, Any]:
    """Parse JSON as a mapping and, if `fields` are given, check it as a row of a log.

    Numbers that are not finite, or beyond 1e100, become `None`.

    Args:
        line: the JSON text.
        fields: the fields that a row must have, with their types.

    Raises:
        ValueError: if the text is not a JSON mapping, a field is missing or of another type, or the
            nesting is too deep.
    """
    row = json.loads(
        line, parse_int=number_of, parse_float=number_of, parse_constant=lambda _: None
    )
    if not isinstance(row, dict):
        raise ValueError("it is not a mapping")
    if fields:
        _check_fields(row, fields)
    _check_depth(row)
    return row


def _check_fields(row: dict[str, Any], fields: Mapping[str, FieldType]) -> None:
    for name, field_type in fields.items():
        if name not in row or not isinstance(row[name], field_type):
            raise ValueError(f"its {name!r} is missing or of another type")
    inner_types: dict[str, FieldType] = {"not_finite": object, "rewards": int | float | None}
    for name, inner_type in inner_types.items():
        inner = row.get(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"its {name!r} is not a mapping")
        if not all(isinstance(entry, inner_type) for entry in inner.values()):
            raise ValueError(f"its {name!r} has values of another type")


def _check_depth(row: dict[str, Any]) -> None:
    level: list[Any] = [row]
    for _ in range(DEEPEST):
        children: list[Any] = []
        for container in level:
            children += container.values() if isinstance(container, dict) else container
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def number_of(text: str) -> float | None:
    """Parse a number of a log; `None` if it is not finite or is beyond 1e100.

    Returns an `int` if the number is written as one and every JSON reader represents it exactly.
    """
    number = float(text)
    if not abs(number) <= 1e100:
        return None
    if text.lstrip("-").isdigit() and abs(number) < 2**53:
        return int(text)
    return number
