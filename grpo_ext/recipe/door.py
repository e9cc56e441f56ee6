"""The settings of a recipe by its keys; slips of keys and words are told before TRL is imported, which takes seconds.

Which keys there are, and the words that each takes, is kept in the user's cache folder, for the versions and the source that it
was read from. Where there is no such file, slips are told later by `load_recipe`, in the same words.
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


def early_slips(settings: Settings) -> list[Problem]:
    """The unknown keys and wrong words of a training recipe; none where the table is not there yet."""
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
        keys["loss_type"] = ("", Any)  # they may bring more
    return sort_settings(settings, keys, known["sft"], grpo=True)[1]


def sort_settings(
    settings: Settings, known: dict[str, tuple[str, Any]], others: Container[str], grpo: bool
) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Each setting converted and put with its part of the recipe; what cannot be is a problem.

    `known` has by key its part and its type; `others` are the keys of the other kind of recipe than `grpo` says.
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


def remember(grpo: dict[str, Any], sft: dict[str, Any]) -> None:
    """Keep the table: by key its type in recipes of GRPO, and in those of supervised training."""
    words = {key: _words(hint) for key, hint in grpo.items()}
    with suppress(OSError):  # told later, then
        write_atomically(_table(), json.dumps({"stamp": _stamp(), "grpo": words, "sft": [*sft]}))


def _words(hint: Any) -> list[Any]:
    """The words of a type that allows nothing else."""
    kinds = (hint,) if typing.get_origin(hint) is Literal else typing.get_args(hint)
    if not all(kind is type(None) or typing.get_origin(kind) is Literal for kind in kinds):
        return []
    return [*choices(hint), *(None for kind in kinds if kind is type(None))]


def _table() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "grpo_ext" / "keys.json"


def _stamp() -> list[Any]:
    """What the table was read from."""
    sources = sorted(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    return [version("trl"), version("transformers"), __file__, sources]
