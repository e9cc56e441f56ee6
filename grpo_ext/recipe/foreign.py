"""Keys of open-r1, ms-swift and older versions of TRL, and what to write instead; `docs/coming-from.md` has whole tables."""

import dataclasses
from collections.abc import Container, Iterable

from grpo_ext.common.files import data_yaml
from grpo_ext.common.near import unknown
from grpo_ext.tasks import task_classes

FOREIGN: dict[str, list[str]] = data_yaml(
    "grpo_ext.recipe", "foreign.yaml"
)  # where a key comes from, what to write


def unknown_key(key: str, known: Iterable[str], others: Container[str], grpo: bool) -> str:
    """Return the message for a key that is not `known`; `others` are the keys of the other kind of recipe."""
    if key in FOREIGN:
        origin, instead = FOREIGN[key]
        advice = instead if instead.startswith("take it out") else f"write {instead}"
        return f"{key} is a key of {origin}: {advice}."
    if key in others:
        what, command = ("supervised training", "sft") if grpo else ("GRPO", "train")
        return f"{key} is a key of {what}: `grpo-ext {command}`."
    for name, cls in task_classes().items():
        if key in {f.name for f in dataclasses.fields(cls)}:
            how = (
                f"Write `task: {name}`, or take it out."
                if grpo
                else "Take it out: supervised training has no task."
            )
            return f"{key} belongs to the task {name!r}. {how}"
    return unknown("key", key, known)
