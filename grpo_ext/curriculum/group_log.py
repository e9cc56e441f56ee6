"""The figures to log about the groups of each generation."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.refill import Filled


@dataclass(eq=False)
class GroupLog:
    """Counts of groups, generation by generation."""

    clock: Callable[[], float] = time.perf_counter  # seconds
    _ended: float | None = None  # end of the previous generation, on the clock

    def start(self) -> None:
        """Begin a generation."""
        self._started = self.clock()
        self._counts = [0, 0, 0, 0]  # generated, kept, all right, all wrong
        self.filled: Filled | None = None  # how the step was refilled

    def generated(self, stats: GroupStats) -> None:
        """Count groups that were generated and judged."""
        found = [stats.kept.numel(), *(int(x.sum()) for x in (stats.kept, stats.all_right, stats.all_wrong))]
        self._counts = [a + b for a, b in zip(self._counts, found, strict=True)]

    def figures(self) -> dict[str, float]:
        """Return the figures of the generation under their log names."""
        generated, kept, right, wrong = self._counts
        now, since = self.clock(), self._ended if self._ended is not None else self._started
        self._ended = now
        shares = {"all_right": right, "all_wrong": wrong, "mixed": generated - right - wrong}
        figures = {name: groups / max(generated, 1) for name, groups in shares.items()}
        figures |= {"generated": generated, "kept": kept}
        if filled := self.filled:
            figures |= {"refilled": filled.further, "expired": filled.expired, "reused": filled.reused}
            figures |= {"carried": count(filled.carried), "missing": filled.missing}
        figures["useful_per_second"] = (filled.used if filled else kept) / max(now - since, 1e-9)
        return {f"groups/{name}": float(value) for name, value in figures.items()}
