"""The figures to log about the groups of each generation, and advice if most groups have no signal."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.refill import Filled

WINDOW = 20  # generations that the advice counts
SILENT_SHARE = 0.5  # least share of groups without signal for advice


@dataclass(eq=False)
class GroupLog:
    """Counts of groups, generation by generation."""

    group_filter: str  # value of the option, for the advice
    clock: Callable[[], float] = time.perf_counter  # seconds
    _advised: bool = False
    _ended: float | None = None  # end of the previous generation, on the clock
    _recent: deque[list[int]] = field(default_factory=lambda: deque(maxlen=WINDOW))  # counts of generations

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
        self._recent.append(self._counts)
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

    def advice(self) -> str | None:
        """Return, once and after half a window, what to set if most groups have no signal."""
        generated, kept, right, wrong = (sum(counts) for counts in zip(*self._recent, strict=True))
        if self._advised or len(self._recent) < WINDOW // 2 or 1 - kept / max(generated, 1) < SILENT_SHARE:
            return None
        self._advised = True
        remedies = {"off": "group_filter: refill", "drop": "group_filter: refill", "refill": "more num_generations"}
        easy = "curriculum: easy_pool" if right > wrong else "curriculum: adaptive"
        return (
            f"{1 - kept / generated:.0%} of the last {generated} groups had no signal ({right / generated:.0%} all right, "
            f"{wrong / generated:.0%} all wrong) and taught nothing. Set {remedies[self.group_filter]}, or {easy}. "
            "`grpo-ext probe` says what to expect of each num_generations."
        )
