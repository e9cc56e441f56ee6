"""Keys of other tools and of older versions of TRL, and their replacements in a recipe.

`docs/keys-of-others.md` lists all of them.
"""

import dataclasses
import re
from collections.abc import Collection, Container
from typing import Any

from grpo_ext.common.files import data_yaml
from grpo_ext.common.suggestions import unknown
from grpo_ext.tasks import task_classes

_ENTRIES: dict[str, list[Any]] = data_yaml("grpo_ext.recipe", "foreign.yaml")
# key -> [where it comes from, what to use instead]
FOREIGN: dict[str, list[str]] = {key: entry[:2] for key, entry in _ENTRIES.items()}
# key -> how `grpo-ext migrate` translates its value: our key for the same value, or a mapping from
# each value to our keys and values
TRANSLATIONS: dict[str, str | dict[Any, Any]] = {
    key: entry[2] for key, entry in _ENTRIES.items() if len(entry) > 2
}
TRAINER = "GRPOTrainer"  # the origin of arguments that are not settings


def unknown_key(
    key: str, fields: Collection[str], other_fields: Container[str], grpo: bool, several: bool
) -> str:
    """Return the error message for an unknown key of a recipe.

    Args:
        key: the key as written in the recipe.
        fields: the keys of this kind of recipe.
        other_fields: the keys of the other kind of recipe.
        grpo: whether the recipe is for GRPO; otherwise it is for supervised training.
        several: whether the recipe has `tasks`, so that task keys belong in its entries.
    """
    entry = entry_of(key)
    if entry is not None and has_counterpart(entry, fields):
        return foreign_key(key, entry)
    inner = key.rpartition(".")[2]
    if inner != key and inner in fields:
        return f"unknown key {key!r}: a recipe is flat, so use {inner}."
    if key in other_fields and grpo:
        return f"{key} is a key of supervised training. Remove it, or train with `grpo-ext sft`."
    if key in other_fields:
        return f"{key} is a key of GRPO training. Remove it, or train with `grpo-ext train`."
    tasks = []
    for name, cls in task_classes().items():
        if key in {f.name for f in dataclasses.fields(cls)}:
            tasks.append(name)
    if tasks:
        advice = f"Set `task: {tasks[0]}`, or remove {key}."
        if not grpo:
            advice = "Remove it: supervised training has no task."
        elif several:
            advice = "Set it in the entry of such a task in `tasks`."
        return f"{key} belongs to the task {' or '.join(map(repr, tasks))}. {advice}"
    return unknown("key", key, fields)


def entry_of(key: str) -> str | None:
    """Return the name of the entry in `FOREIGN` that a key belongs to, or `None`.

    A nested key belongs to the entry of an outer part, if there is one, such as `critic.*` for all
    keys in `critic`. Otherwise it belongs to the longest of its endings that is an entry, such as
    `rollout.mode` for `actor_rollout_ref.rollout.mode`.
    """
    parts = key.split(".")
    for part in parts[:-1]:
        if f"{part}.*" in FOREIGN:
            return f"{part}.*"
    for start in range(len(parts)):
        name = ".".join(parts[start:])
        if name in FOREIGN:
            return name
    return None


def has_counterpart(key: str, fields: Container[str]) -> bool:
    """Return whether the advice for `key` proposes a key in `fields`, or no key at all.

    Args:
        key: the name of an entry in `FOREIGN`.
        fields: the keys of this kind of recipe.
    """
    advised = re.match(r"[a-z_0-9]+(?=$|[:,])", FOREIGN[key][1])
    return advised is None or advised.group() in fields


def foreign_key(written: str, key: str) -> str:
    """Return the error message for another tool's key.

    Args:
        written: the key as spelled in the recipe.
        key: the name of its entry in `FOREIGN`.
    """
    origin, instead = FOREIGN[key]
    kind = "an argument" if origin == TRAINER else "a key"
    advice = f"Use {instead}"
    if instead.startswith("remove it"):
        advice = instead.replace("remove", "Remove", 1)
    return f"{written} is {kind} of {origin}. {advice}."
