"""One line of a log as strict JSON, written and read.

Whatever an untrusted line holds, reading it either returns a row or raises `ValueError` or
`RecursionError`.
"""

import json
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any

DEEPEST = 16  # levels of a line's nesting
FieldType = type | UnionType  # what `isinstance` accepts


def encoded(row: dict[str, Any]) -> bytes:
    """Return a row as one line of strict JSON.

    Numbers that are not finite become null and are named under `not_finite`.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # only now: most rows are finite, and every sample is written
        not_finite: dict[str, str] = {}
        row = {**finite(row, "", not_finite), "not_finite": not_finite}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # a lone surrogate becomes its JSON escape
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """Return a number of numpy or torch as a Python number, and any other value as text."""
    try:
        return value.item()
    except Exception:  # an array, or not a number at all
        return str(value)


def finite(value: object, path: str, not_finite: dict[str, str]) -> Any:
    """Return a copy of `value` with `None` in place of numbers that are not finite.

    Args:
        value: anything that JSON can express, and numbers of numpy and torch.
        path: of `value` in the row, such as `rewards/a`; empty for the row itself.
        not_finite: gets the replaced numbers as text, by path.
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
    """Parse JSON as a mapping, and with `fields` as a row of a log.

    Raises:
        ValueError: if it is not a mapping, lacks one of the fields, or is nested too deeply.
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
    """Return a number of a log: an integer if written as one and safe for every program."""
    number = float(text)
    if not abs(number) <= 1e100:
        return None
    if text.lstrip("-").isdigit() and abs(number) < 2**53:
        return int(text)
    return number
