"""What became of the groups of each generation: the figures to log, and advice where most of them teach nothing."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from grpo_ext.curriculum.groups import GroupStats

WINDOW = 20  # generations that advice looks back on
SILENT_SHARE = 0.5  # of the groups, from which there is advice

Metrics = dict[str, list[float]]


class GroupLog:
    """Counts of one generation after the other.

    Args:
        group_filter: the option in force, for the advice.
        clock: seconds.
    """

    def __init__(self, group_filter: str, clock: Callable[[], float] = time.perf_counter):
        self.group_filter, self.clock = group_filter, clock
        self.advised = False
        self._ended: float | None = None  # when the generation before began to be trained on
        self._recent: deque[tuple[int, ...]] = deque(maxlen=WINDOW)  # generated, kept, all right, all wrong
        self.start()

    def start(self) -> None:
        """A generation begins."""
        self._started = self.clock()
        self._counts = [0, 0, 0, 0]
        self._further: dict[str, float] = {}
        self._used: int | None = None

    def generated(self, stats: GroupStats) -> None:
        """Groups were generated and judged."""
        found = [stats.kept.numel(), *(int(x.sum()) for x in (stats.kept, stats.all_right, stats.all_wrong))]
        self._counts = [a + b for a, b in zip(self._counts, found, strict=True)]

    def used(self, count: int) -> None:
        """So many groups with signal go into the step."""
        self._used = count

    def refilled(self, further: int, expired: int, taken: int, carried: int, missing: int) -> None:
        """How the step was filled.

        Args:
            further: groups generated beyond the data loader's.
            expired: groups carried here that had become too old.
            taken: groups carried here and used.
            carried: groups kept for the next generation.
            missing: places that no group with signal was found for.
        """
        self._further = {
            "refilled": further,
            "expired": expired,
            "reused": taken,
            "carried": carried,
            "missing": missing,
        }

    def figures(self) -> dict[str, float]:
        """The figures of the generation, under the names they are logged by."""
        generated, kept, right, wrong = self._counts
        self._recent.append(tuple(self._counts))
        now, since = self.clock(), self._ended if self._ended is not None else self._started
        self._ended = now
        shares = {"all_right": right, "all_wrong": wrong, "mixed": generated - right - wrong}
        useful = kept if self._used is None else self._used
        figures = {name: count / max(generated, 1) for name, count in shares.items()}
        figures |= {"generated": generated, "kept": kept, **self._further}
        figures["useful_per_second"] = useful / max(now - since, 1e-9)
        return {f"groups/{name}": float(value) for name, value in figures.items()}

    def advice(self) -> str | None:
        """What to set where most groups teach nothing; said once, after half a window."""
        generated, kept, right, wrong = (sum(counts) for counts in zip(*self._recent, strict=True))
        if self.advised or len(self._recent) < WINDOW // 2 or 1 - kept / max(generated, 1) < SILENT_SHARE:
            return None
        self.advised = True
        remedies = {"off": "group_filter: refill", "drop": "group_filter: refill", "refill": "more num_generations"}
        easy = "curriculum: easy_pool" if right > wrong else "curriculum: adaptive"
        return (
            f"{1 - kept / generated:.0%} of the last {generated} groups had no signal ({right / generated:.0%} all right, "
            f"{wrong / generated:.0%} all wrong) and taught nothing. Set {remedies[self.group_filter]}, or {easy}. "
            "`grpo-ext probe` says what to expect of each num_generations."
        )


def merge_metrics(metrics: Metrics, marks: dict[str, int], weights: list[int]) -> None:
    """Make one value of those that several rounds of one generation have logged, in place.

    Args:
        metrics: name to values.
        marks: how many values each had before.
        weights: completions of each round.
    """
    for name, values in metrics.items():
        mark = marks.get(name, 0)
        found = values[mark:]
        if len(weights) < 2 or len(found) != len(weights):
            continue
        pairs = [(value, weight) for value, weight in zip(found, weights, strict=True) if not math.isnan(value)]
        last = name.rsplit("/", 1)[-1]
        if not pairs:
            merged = math.nan
        elif last.startswith(("min", "max")):
            merged = (min if last.startswith("min") else max)(value for value, _ in pairs)
        else:
            merged = sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
        values[mark:] = [merged]
