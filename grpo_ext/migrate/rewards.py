"""Translate the names of rewards; `data/rewards.yaml` lists the rewards of each project."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.files import data_yaml
from grpo_ext.migrate.draft import Draft, Setting

# project -> its reward -> {name, fixed, options: {ours: [theirs, default, divisor]}, note}
REWARDS: dict[str, dict[str, dict[str, Any]]] = data_yaml("grpo_ext.migrate", "rewards.yaml")
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
MODEL_ID = re.compile(r"[\w.-]+/[\w./-]+")


@dataclass(frozen=True)
class Entry:
    """An entry of `reward_funcs`, or the reason why there is none."""

    spec: str | dict[str, Any] | None
    name: str  # of the other project
    fault: str = ""


def write_rewards(
    draft: Draft, project: str, setting: Setting | None, names: list[str], advice: str = ""
) -> None:
    """Write `reward_funcs` and `reward_weights`.

    Rewards, options and weights that cannot be taken over become remarks. If no reward is taken
    over, `reward_funcs` must be written by hand.

    Args:
        draft: the recipe under construction.
        project: the name of the other project.
        setting: the setting with the rewards, for remarks; `None`: remarks are on the whole file.
        names: the names of the rewards in the other project.
        advice: the remark on an unknown reward; empty: a general one.
    """
    table = REWARDS.get(project, {})
    used = {name for name in names if name in table}
    entries = [reward_entry(draft, table, name, advice) for name in names]
    for info in table.values():  # options of rewards that are not used
        for theirs, *_ in info.get("options", {}).values():
            unused = draft.take(theirs)
            if unused is not None and not any(reads(table[name], theirs) for name in used):
                draft.remark(unused, "not taken over: no reward of this run reads it.")
    specs = [entry.spec for entry in entries if entry.spec is not None]
    for entry in entries:
        note = table.get(entry.name, {}).get("note", "")
        if entry.fault or note:
            draft.remark(setting, f"{entry.name}: {entry.fault or note}")
    weights = draft.known("reward_weights")
    if isinstance(weights, int | float):
        weights = [weights]
    if isinstance(weights, list) and len(weights) == len(entries):
        kept = zip(weights, entries, strict=True)
        weights = [weight for weight, entry in kept if entry.spec is not None]
        if specs:
            draft.write("reward_weights", weights)
    elif weights is not None:
        draft.remark(
            setting,
            "reward_weights was left out, because it is not a list with one weight for each "
            "reward. Write it by hand.",
        )
    if specs:
        draft.write("reward_funcs", specs)
    else:
        draft.missing["reward_funcs"] = (
            "name at least one reward; `grpo-ext rewards list` shows them"
        )
        draft.remark(setting, "write reward_funcs by hand: none of the rewards was taken over.")


def reads(info: dict[str, Any], theirs: str) -> bool:
    """Return whether a reward of the table reads an option of the other project."""
    return any(option[0] == theirs for option in info.get("options", {}).values())


def reward_entry(draft: Draft, table: dict[str, dict[str, Any]], name: str, advice: str) -> Entry:
    """Return the entry of `reward_funcs` for a reward of another project; see `write_rewards`."""
    if name in table:
        return entry_with_options(draft, table[name], name)
    if ":" in name:
        return Entry(name, name)
    if IMPORT_PATH.fullmatch(name):
        module, _, function = name.rpartition(".")
        return Entry(f"{module}:{function}", name)
    if MODEL_ID.fullmatch(name):
        return Entry(name, name)
    fault = "not taken over: there is no reward like it here."
    return Entry(None, name, advice or f"{fault} Write one as docs/how-to/own-reward.md shows.")


def entry_with_options(draft: Draft, info: dict[str, Any], name: str) -> Entry:
    """Return the entry of a reward in the table, with options from the settings or their defaults.

    If the reward has no counterpart here, the entry has no spec, and its fault says why.
    """
    if "name" not in info:
        return Entry(None, name, f"not taken over: {info['note']}")
    options = dict(info.get("fixed", {}))
    for ours, (theirs, default, *divisor) in info.get("options", {}).items():
        value = draft.known(theirs, default=default)
        if isinstance(value, str):  # the key of the recipe that it has by default
            value = draft.values.get(value)
        if isinstance(value, int | float) and divisor:
            value = max(1, round(value / divisor[0]))
        if value is not None:
            options[ours] = value
    return Entry({"name": info["name"], **options} if options else info["name"], name)
