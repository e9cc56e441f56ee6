"""Translate the names of rewards; `data/rewards.yaml` lists the rewards of each project."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.files import data_yaml
from grpo_ext.migrate.draft import Draft, Setting

# project -> name of its reward -> {name, fixed, options: {ours: [theirs, default, divisor]}, note}
REWARDS: dict[str, dict[str, dict[str, Any]]] = data_yaml("grpo_ext.migrate", "rewards.yaml")
IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
MODEL_ID = re.compile(r"[\w.-]+/[\w./-]+")


@dataclass(frozen=True)
class Entry:
    """An entry of `reward_funcs` for a reward of another project."""

    spec: str | dict[str, Any] | None  # the entry; `None` if the reward cannot be taken over
    name: str  # the reward's name in the other project
    fault: str = ""  # why `spec` is `None`


def write_rewards(
    draft: Draft, project: str, setting: Setting | None, names: list[str], advice: str = ""
) -> None:
    """Write `reward_funcs` and `reward_weights`.

    Remarks say which rewards, options and weights cannot be taken over. If no reward can be taken
    over, the user must set `reward_funcs` by hand.

    Args:
        draft: the recipe under construction.
        project: the name of the other project.
        setting: the setting that names the rewards, to which remarks refer; if `None`, they refer
            to the whole file.
        names: the names of the rewards in the other project.
        advice: the remark about an unknown reward; if empty, a general remark is used.
    """
    table = REWARDS.get(project, {})
    used = {name for name in names if name in table}
    entries = [reward_entry(draft, table, name, advice) for name in names]
    for info in table.values():  # take options of rewards that the run does not use
        for theirs, *_ in info.get("options", {}).values():
            unused = draft.take(theirs)
            if unused is not None and not any(reads(table[name], theirs) for name in used):
                draft.remark(unused, "not taken over: no reward of this run uses it.")
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
            "reward. Set it by hand.",
        )
    if specs:
        draft.write("reward_funcs", specs)
    else:
        draft.missing["reward_funcs"] = (
            "name at least one reward; `grpo-ext rewards list` shows them"
        )
        draft.remark(setting, "set reward_funcs by hand: none of the rewards was taken over.")


def reads(info: dict[str, Any], theirs: str) -> bool:
    """Return whether a reward uses the option `theirs` of the other project.

    `info` is the reward's entry in `REWARDS`.
    """
    return any(option[0] == theirs for option in info.get("options", {}).values())


def reward_entry(draft: Draft, table: dict[str, dict[str, Any]], name: str, advice: str) -> Entry:
    """Return the `reward_funcs` entry for a reward of another project.

    A name that is not in `table` is taken over if it has the form of a function (with a colon, or
    an import path) or of a model id. Otherwise, `spec` is `None`.

    Args:
        draft: the recipe under construction, from which the reward's options are removed.
        table: the rewards of the other project in `REWARDS`.
        name: the name of the reward in the other project.
        advice: the remark about an unknown reward; if empty, a general remark is used.
    """
    if name in table:
        return entry_with_options(draft, table[name], name)
    if ":" in name:
        return Entry(name, name)
    if IMPORT_PATH.fullmatch(name):
        module, _, function = name.rpartition(".")
        return Entry(f"{module}:{function}", name)
    if MODEL_ID.fullmatch(name):
        return Entry(name, name)
    fault = "not taken over: grpo-ext has no reward like it."
    return Entry(None, name, advice or f"{fault} Write one as docs/how-to/own-reward.md shows.")


def entry_with_options(draft: Draft, info: dict[str, Any], name: str) -> Entry:
    """Return the `reward_funcs` entry for a known reward, with its options.

    The values of the options come from the draft, or else from the other project's defaults. An
    option that has neither is left out. If the reward has no counterpart here, `spec` is `None`.

    Args:
        draft: the recipe under construction, from which the options are removed.
        info: the reward's entry in `REWARDS`.
        name: the name of the reward in the other project.
    """
    if "name" not in info:
        return Entry(None, name, f"not taken over: {info['note']}")
    options = dict(info.get("fixed", {}))
    for ours, (theirs, default, *divisor) in info.get("options", {}).items():
        value = draft.known(theirs, default=default)
        if isinstance(value, str):  # a string names the recipe key whose value is the default
            value = draft.values.get(value)
        if isinstance(value, int | float) and divisor:
            value = max(1, round(value / divisor[0]))
        if value is not None:
            options[ours] = value
    return Entry({"name": info["name"], **options} if options else info["name"], name)
