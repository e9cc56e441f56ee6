"""What only the completions tell of a step: how far rewards spread within the groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any


@dataclass
class StepFigures:
    """Means over the training groups of each step, from rows in the order in which they were written.

    By reward; `reward` is the weighted sum.
    """

    steps: list[int] = field(default_factory=list)  # those that have groups
    mean: dict[str, list[float | None]] = field(default_factory=dict)  # of each step: the mean of its groups' means
    spread: dict[str, list[float | None]] = field(
        default_factory=dict
    )  # and of their standard deviations (population)
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # lowest and highest that a completion got
    _step: int | None = None
    _groups: dict[int, list[dict[str, float | None]]] = field(default_factory=dict)  # of the step that is read

    def add(self, row: dict[str, Any]) -> None:
        """Take the next row."""
        if row["mode"] != "train":
            return
        if row["step"] != self._step:
            self.end()
            self._step = row["step"]
        self._groups.setdefault(row["group"], []).append({"reward": row["reward"], **row["rewards"]})

    def end(self) -> None:
        """Close the last step."""
        if not self._groups or self._step is None:
            return
        groups = list(self._groups.values())
        for name in {**self.mean, **groups[0][0]}:
            found = [[value for row in group if (value := row.get(name)) is not None] for group in groups]
            scored = [values for values in found if values]
            for column, figure in ((self.mean, fmean), (self.spread, pstdev)):
                means = column.setdefault(name, [None] * len(self.steps))
                means.append(fmean(figure(values) for values in scored) if scored else None)
            if ends := [value for values in scored for value in values] + list(self.bounds.get(name, ())):
                self.bounds[name] = min(ends), max(ends)
        self.steps.append(self._step)
        self._groups = {}
