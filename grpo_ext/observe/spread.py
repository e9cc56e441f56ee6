"""What only the completions tell of a step: how rewards spread within groups, how many groups were all right or all wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any


@dataclass
class StepFigures:
    """Means over the training groups of each step, from rows in the order in which they were written.

    Args:
        outcome: the reward that says whether a completion is right: where it is 1 or more.

    Attributes:
        steps: those that have groups.
        mean, spread: by reward (and `reward`, the weighted sum), for each step the mean of its groups' means and of their
            standard deviations (population).
        share: by `"all right"`, `"mixed"` and `"all wrong"`, the share of each step's groups.
    """

    outcome: str | None
    steps: list[int] = field(default_factory=list)
    mean: dict[str, list[float | None]] = field(default_factory=dict)
    spread: dict[str, list[float | None]] = field(default_factory=dict)
    share: dict[str, list[float]] = field(default_factory=lambda: {"all right": [], "mixed": [], "all wrong": []})
    _key: Any = None
    _group: list[dict[str, Any]] = field(default_factory=list)
    _groups: list[list[dict[str, Any]]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        """Take the next row."""
        if row["mode"] != "train":
            return
        key = (row["step"], row["group"])
        if key != self._key:
            self._close_group()
            if self._key is not None and row["step"] != self._key[0]:
                self._close_step()
            self._key = key
        self._group.append({"reward": row["reward"], **row["rewards"]})

    def end(self) -> None:
        """Close the last step."""
        self._close_group()
        self._close_step()

    def _close_group(self) -> None:
        if self._group:
            self._groups.append(self._group)
            self._group = []

    def _close_step(self) -> None:
        if not self._groups:
            return
        for name in self._groups[0][0]:
            scored = [[row[name] for row in group if row[name] is not None] for group in self._groups]
            scored = [values for values in scored if values]
            self.mean.setdefault(name, []).append(fmean(map(fmean, scored)) if scored else None)
            self.spread.setdefault(name, []).append(fmean(map(pstdev, scored)) if scored else None)
        right = [[(row.get(self.outcome or "") or 0) >= 1 for row in group] for group in self._groups]
        kinds = ["all right" if all(group) else "mixed" if any(group) else "all wrong" for group in right]
        for kind, shares in self.share.items():
            shares.append(kinds.count(kind) / len(kinds))
        self.steps.append(self._key[0])
        self._groups = []
