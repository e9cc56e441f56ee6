"""Slips of a recipe's keys and words, told before TRL is imported, which takes seconds.

Which keys there are, and the words that each takes, is kept in the user's cache folder, for the versions and the source that it
was read from. Where there is no such file, slips are told later by `load_recipe`, in the same words.
"""

from __future__ import annotations

import dataclasses
import json
import os
import typing
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
        words = {**{f.name: [] for f in dataclasses.fields(get_task_class(name))}, **known["grpo"]}
    except ValueError as error:
        return [Problem(str(error), "task", place)]
    if "reward_plugins" in settings:
        words["loss_type"] = []  # they may bring more
    problems = []
    for key, (value, place) in settings.items():
        if key not in words:
            problems.append(Problem(unknown_key(key, words, known["sft"], grpo=True), key, place))
        elif words[key]:
            try:
                hint: Any = Literal[tuple(word for word in words[key] if word is not None)]
                convert(key, value, hint | None if None in words[key] else hint)
            except ValueError as error:
                problems.append(Problem(str(error), key, place))
    return problems


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
