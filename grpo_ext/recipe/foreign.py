"""Keys of other tools and of older TRL versions, and what to write instead.

`docs/coming-from.md` has whole tables.
"""

import dataclasses
import re
from collections.abc import Collection, Container

from grpo_ext.common.files import data_yaml
from grpo_ext.common.suggestions import unknown
from grpo_ext.tasks import task_classes

# where a key comes from, what to write
FOREIGN: dict[str, list[str]] = data_yaml("grpo_ext.recipe", "foreign.yaml")
TRAINER = "GRPOTrainer"  # the origin of arguments that are no settings


def unknown_key(
    key: str, known: Collection[str], others: Container[str], grpo: bool, several: bool
) -> str:
    """Return the message for a key not in `known`; `others` are keys of the other recipe kind.

    With `several`, the recipe has `tasks`, whose entries have the keys of single tasks.
    """
    inner = key.rpartition(".")[2]  # of a nested configuration, as in `actor_rollout_ref.rollout.n`
    if inner in FOREIGN and has_counterpart(inner, known):
        return foreign_key(key, inner)
    if inner != key and inner in known:
        return f"unknown key {key!r}: a recipe is flat, so write {inner}."
    if key in others:
        what, command = ("supervised training", "sft") if grpo else ("GRPO", "train")
        return f"{key} is a key of {what}: `grpo-ext {command}`."
    for name, cls in task_classes().items():
        if key in {f.name for f in dataclasses.fields(cls)}:
            how = f"Write `task: {name}`, or take it out."
            if several:
                how = "Write it in an entry of `tasks`."
            elif not grpo:
                how = "Take it out: supervised training has no task."
            return f"{key} belongs to the task {name!r}. {how}"
    return unknown("key", key, known)


def has_counterpart(key: str, known: Container[str]) -> bool:
    """Whether a foreign key's advice fits these keys: supervised training lacks those of GRPO."""
    named = re.match(r"[a-z_0-9]+(?=$|[:,])", FOREIGN[key][1])
    return named is None or named.group() in known


def foreign_key(written: str, key: str) -> str:
    """Return the message for the foreign `key`, which the recipe has as `written`."""
    origin, instead = FOREIGN[key]
    kind = "an argument" if origin == TRAINER else "a key"
    advice = instead if instead.startswith("take it out") else f"write {instead}"
    return f"{written} is {kind} of {origin}: {advice}."
