"""From what a recipe says to what a field holds: types, choices and ranges of single values."""

from __future__ import annotations

import math
import types
import typing
from contextlib import suppress
from functools import cache
from typing import Any

import yaml
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from grpo_ext.common.near import did_you_mean
from grpo_ext.recipe.read import Word
from grpo_ext.recipe.schema import CHOICES, RANGES

TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}


@cache
def _adapter(hint: Any) -> TypeAdapter:
    config = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)
    try:
        return TypeAdapter(hint, config=config)
    except PydanticUserError:  # a dataclass of its own carries its own configuration
        return TypeAdapter(hint)


def in_words(hint: Any) -> str:
    """A type hint as a person would say it: `float | None` is "a number or null"."""
    if hint is type(None):
        return "null"
    if hint in TYPE_WORDS:
        return TYPE_WORDS[hint]
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(a) for a in arguments))
    if origin is list:
        return f"a list of items, each {in_words(arguments[0])}" if arguments else "a list"
    if origin is dict:
        return "a mapping"
    return getattr(hint, "__name__", str(hint))


def convert(key: str, value: Any, hint: Any, choices: tuple[str, ...] | None = None) -> Any:
    """`value` as the field `key` of type `hint` holds it, so that `5e-7`, which YAML reads as text, becomes a number.

    Raises:
        ValueError: with a sentence, if the value does not fit the type, the field's choices or its range.
    """
    choices = choices or CHOICES.get(key)
    if isinstance(value, Word):
        value = _from_word(value, hint)
    if value is False and choices and "no" in choices:
        value = "no"  # YAML reads a bare `no` as false
    try:
        value = _adapter(hint).validate_python(value)
    except ValidationError:
        if _takes_a_list(hint) and isinstance(value, str | int | float | dict):
            with suppress(ValueError):
                return convert(key, [value], hint, choices)  # one item needs no brackets
        raise ValueError(f"{key} is {_one_of(choices) if choices else in_words(hint)}; got {value!r}.") from None
    # TRL's scale_rewards also takes a boolean, for "group" and "none".
    if choices and isinstance(value, str) and value not in choices:
        raise ValueError(f"{key} is {_one_of(choices)}; got {value!r}.{did_you_mean(value, choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} must be a finite number, got {value}.")
    if key == "num_generations" and value is None:  # which TRL's type allows
        raise ValueError(f"{key} is {in_words(int)}; got None.")
    _check_range(key, value)
    return value


def _takes_a_list(hint: Any) -> bool:
    return any(typing.get_origin(kind) is list for kind in (hint, *typing.get_args(hint)))


def _from_word(word: Word, hint: Any) -> Any:
    """What a word of the command line means to a field: itself where text is taken, else what YAML makes of it."""
    kinds = typing.get_args(hint) or (hint,)
    if str in kinds and not (type(None) in kinds and word in ("null", "None")):
        return str(word)
    try:
        return None if word == "None" else yaml.safe_load(word)
    except yaml.YAMLError:
        return str(word)


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(choices)}"


def _check_range(key: str, value: Any) -> None:
    if key not in RANGES or isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = RANGES[key]
    if value < low or (high is not None and value > high):
        least = "above 0" if 0 < low < 0.01 else f"at least {low:g}"  # an open bound is written as a small value
        bounds = least if high is None else f"{least} and at most {high:g}"
        raise ValueError(f"{key} must be {bounds}, got {value:g}.")
