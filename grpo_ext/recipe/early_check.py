"""The conversion of a recipe's settings, and the report of wrong keys and words before the import of TRL, which takes seconds.

A table in the user's cache folder holds the known keys and the words that each takes, for one version of the sources. Without
that table, `load_recipe` reports the same faults in the same words.
"""

import dataclasses
import json
import os
import typing
from collections.abc import Container
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from grpo_ext.common.files import write_atomically
from grpo_ext.recipe.foreign import unknown_key
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.read import Settings
from grpo_ext.recipe.values import choices, convert
from grpo_ext.tasks import get_task_class


def early_problems(settings: Settings) -> list[Problem]:
    """Return the unknown keys and wrong words of a training recipe; none before there is a table."""
    try:
        known: dict[str, Any] = json.loads(_table().read_text(encoding="utf-8"))
        if known["stamp"] != _stamp():
            return []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    name, place = settings.get("task", ("countdown", None))
    try:
        keys = {f.name: ("task", Any) for f in dataclasses.fields(get_task_class(name))}
    except ValueError as error:
        return [Problem(str(error), "task", place)]
    for key, words in known["grpo"].items():
        hint: Any = Literal[tuple(word for word in words if word is not None)] if words else Any
        keys[key] = ("", hint | None if None in words else hint)
    if "reward_plugins" in settings:
        keys["loss_type"] = ("", Any)  # they may register more losses
    return sort_settings(settings, keys, known["sft"], grpo=True)[1]


def sort_settings(
    settings: Settings, known: dict[str, tuple[str, Any]], others: Container[str], grpo: bool
) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Return the converted settings by part of the recipe, and the problems of those that cannot be converted.

    `known` maps keys to part and type; `others` are the keys of the other kind of recipe, supervised training if `grpo`.
    """
    values: dict[str, dict[str, Any]] = {}
    problems = []
    for key, (value, place) in settings.items():
        try:
            if key not in known:
                raise ValueError(unknown_key(key, known, others, grpo))
            part, hint = known[key]
            if value == "" and part != "task":  # a task's texts may be empty
                raise ValueError(f"{key} is empty: write a value, or take it out.")
            values.setdefault(part, {})[key] = convert(key, value, hint)
        except ValueError as error:
            problems.append(Problem(str(error), key, place))
    return values, problems


def write_table(grpo: dict[str, Any], sft: dict[str, Any]) -> None:
    """Write the table, from the types by key of GRPO recipes and of recipes of supervised training."""
    words = {key: _words(hint) for key, hint in grpo.items()}
    with suppress(OSError):  # `load_recipe` reports the faults then
        write_atomically(_table(), json.dumps({"stamp": _stamp(), "grpo": words, "sft": [*sft]}))


def _words(hint: Any) -> list[Any]:
    """Return the words of a type that allows only words."""
    kinds = (hint,) if typing.get_origin(hint) is Literal else typing.get_args(hint)
    if not all(kind is type(None) or typing.get_origin(kind) is Literal for kind in kinds):
        return []
    return [*choices(hint), *(None for kind in kinds if kind is type(None))]


def _table() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "grpo_ext" / "keys.json"


def _stamp() -> list[Any]:
    """Return the versions and the modification times of the sources of the table."""
    sources = sorted(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    return [version("trl"), version("transformers"), __file__, sources]
