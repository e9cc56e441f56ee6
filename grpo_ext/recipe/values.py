"""Convert recipe values to their fields' types, and describe those types in words."""

import json
import math
import types
import typing
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.yaml_text import YamlFault, load_yaml
from grpo_ext.recipe.read import Word

Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]

TYPE_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    dict: "a mapping",
}
BOUND_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}


@cache
def _adapter(hint: Any) -> TypeAdapter:
    config = ConfigDict(
        arbitrary_types_allowed=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )
    return TypeAdapter(hint, config=config)


def convert(key: str, value: Any, hint: object) -> Any:
    """Return `value` converted to the type `hint` of the field `key`.

    A `Word`, that is, a value from the command line, is parsed first, as far as `hint` requires.
    For example, `5e-7`, which YAML parses as a string, becomes a number. If the field accepts
    mappings, a string that begins with `{` is parsed as JSON. A single value is accepted in place
    of a list of one value. `False` becomes `"no"` or `"off"` if that is one of the choices, because
    YAML parses the bare words as false.

    Raises:
        ValueError: if the value does not fit the type, its choices or its bounds, or is not finite.
            The message is a complete sentence.
    """
    if isinstance(value, Word):
        value = _from_word(value, hint)
    elif isinstance(value, str) and value.startswith("{") and _takes_mapping(hint):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, Enum):
        value = value.value
    for number in _numbers(value):
        if math.isfinite(number):
            continue
        if number is value:
            raise ValueError(f"{key} must be a finite number; got {number}.")
        raise ValueError(f"{key} must contain only finite numbers; got {number}.")
    allowed = choices(hint)
    if value is False:  # YAML reads a bare `no` or `off` as false
        value = next((word for word in ("no", "off") if word in allowed), False)
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        lists = any(typing.get_origin(kind) is list for kind in (hint, *typing.get_args(hint)))
        if lists and isinstance(value, str | int | float | dict):
            with suppress(ValueError):
                return convert(key, [value], hint)  # one item needs no brackets
        if {part["type"] for part in error.errors()} <= BOUND_ERRORS:
            bound = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ValueError(f"{key} must be {bound}; got {value}.") from None
        guess = did_you_mean(value, map(str, allowed)) if isinstance(value, str) else ""
        raise ValueError(f"{key} must be {in_words(hint)}; got {value!r}.{guess}") from None


def choices(hint: object) -> list[Any]:
    """Return the values of a `Literal`, or of all `Literal` types in a union; otherwise `[]`."""
    allowed: list[Any] = []
    for kind in (hint, *typing.get_args(hint)):
        if typing.get_origin(kind) is Literal:
            allowed += typing.get_args(kind)
    return allowed


def in_words(hint: object) -> str:
    """Describe a type hint in words, such as "a number or null" for `float | None`."""
    if hint is type(None):
        return "null"
    if hint in TYPE_WORDS:
        return TYPE_WORDS[hint]
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Annotated:
        return in_words(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(a) for a in arguments))
    if origin is list:
        return f"a list of items, each {in_words(arguments[0])}" if arguments else "a list"
    return "a mapping" if origin is dict else getattr(hint, "__name__", str(hint))


def _numbers(value: object) -> Iterable[float]:
    """Yield the floats in a value, including those in lists and in values of mappings."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        for part in parts:
            yield from _numbers(part)


def _takes_mapping(hint: object) -> bool:
    kinds = typing.get_args(hint) or (hint,)
    return any((typing.get_origin(kind) or kind) is dict for kind in kinds)


def _from_word(word: Word, hint: object) -> Any:
    """Convert a command-line value to the type `hint` of its field.

    - If the field accepts mappings, a value that begins with `{` is parsed as JSON, or else as
      YAML, or remains a string if it is neither.
    - If the field accepts strings, or the value is one of its choices, the value remains a string;
      but `null` and `None` become `None` if the field is optional.
    - Otherwise, the word `None` becomes `None`, and any other value is parsed as YAML, or remains a
      string if it is not valid YAML.
    """
    kinds = typing.get_args(hint) or (hint,)
    mapping = word.startswith("{") and _takes_mapping(hint)
    if mapping:
        with suppress(ValueError, RecursionError):
            return json.loads(word)  # YAML would parse its 1e-7 as a string
    text = str in kinds and not mapping
    if (text or word in choices(hint)) and not (type(None) in kinds and word in ("null", "None")):
        return str(word)
    try:
        return None if word == "None" else load_yaml(str(word))
    except YamlFault:
        return str(word)
