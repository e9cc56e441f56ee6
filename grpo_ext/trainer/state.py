"""Records as plain types, which `torch.load(weights_only=True)` reads: a file of a checkpoint can then run no code."""

from __future__ import annotations

import pickle
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from grpo_ext.objective.aggregate import StepCounts
from grpo_ext.objective.kept import KeptSet
from grpo_ext.step.feed import Feed
from grpo_ext.step.groups import Groups
from grpo_ext.step.records import MicroBatch, Scored


class CheckpointMismatch(ValueError):
    """A checkpoint that this run cannot go on from exactly."""


def load_plain(path: Path) -> Any:
    """What `torch.save` wrote of tensors and plain types, on the CPU; anything else is refused and not run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointMismatch(f"{path} cannot be loaded ({str(error).partition(chr(10))[0]}).") from error


def dump_scored(table: Scored) -> dict[str, Any]:
    """A table as a mapping, its tensors on the CPU."""
    table = table.on("cpu")
    found = {f.name: getattr(table, f.name) for f in fields(table)}
    return {**found, "kept": table.kept and [(x.vocab_size, x.counts, x.ids, x.bits) for x in table.kept]}


def load_scored(state: dict[str, Any], device: torch.device | str) -> Scored:
    """The table of `dump_scored`."""
    return Scored(**{**state, "kept": state["kept"] and [KeptSet(*x) for x in state["kept"]]}).on(device)


def dump_groups(groups: Groups | None) -> dict[str, Any] | None:
    """Groups as a mapping."""
    if groups is None:
        return None
    return {"table": dump_scored(groups.table), "rewards": groups.rewards.cpu(), "steps": list(groups.steps)}


def load_groups(state: dict[str, Any] | None, device: torch.device | str) -> Groups | None:
    """The groups of `dump_groups`."""
    if state is None:
        return None
    return Groups(load_scored(state["table"], device), state["rewards"].to(device), tuple(state["steps"]))


def dump_inputs(inputs: Any) -> dict[str, Any]:
    """What a loss was computed of: a micro-batch of ours, or TRL's mapping."""
    if not isinstance(inputs, MicroBatch):
        return {"trl": {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}}
    counts = {name: asdict(getattr(inputs, name)) for name in ("counts", "useful")}
    return {"rows": dump_scored(inputs.rows), **counts, "last": inputs.last, "stands_in": inputs.stands_in}


def load_inputs(state: dict[str, Any], device: torch.device | str) -> Any:
    """The inputs of `dump_inputs`."""
    if "trl" in state:
        return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in state["trl"].items()}
    counts = {name: StepCounts(**state[name]) for name in ("counts", "useful")}
    return MicroBatch(load_scored(state["rows"], device), **counts, last=state["last"], stands_in=state["stands_in"])


class FeedState:
    """The generation that is being trained on, and how far, as a part of a checkpoint."""

    def __init__(self, feed: Feed, device: torch.device):
        self.feed, self.device = feed, device

    def state_dict(self) -> dict[str, Any]:
        generation = self.feed.generation
        return {
            "position": self.feed.position,
            "generation": generation and [dump_scored(part) for part in generation],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generation = state["generation"]
        self.feed.position = state["position"]
        self.feed.generation = generation and [load_scored(part, self.device) for part in generation]
