"""The figures to log about the groups of each generation."""

from collections import Counter
from collections.abc import Sequence

from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.metrics import rows_by_task
from grpo_ext.step.refill import Filled


class GroupLog:
    """Counts of groups, generation by generation, of all groups and by task."""

    def start(self) -> None:
        """Begin a generation."""
        self._counts: Counter[str] = Counter()
        self._by_task: dict[str, Counter[str]] = {}
        self.filled: Filled | None = None  # how the step was refilled

    def generated(self, stats: GroupStats, tasks: Sequence[str] = ()) -> None:
        """Count groups that were generated and judged; `tasks` has the task of each group, or is empty."""
        self._counts += counts_of(stats)
        for task, groups in rows_by_task(tasks).items():
            self._by_task.setdefault(task, Counter()).update(counts_of(stats.take(groups)))

    def figures(self) -> dict[str, float]:
        """Return the figures of the generation under their log names; those of a task begin with `tasks/NAME/`."""
        figures = figures_of(self._counts)
        for task, counts in self._by_task.items():
            figures |= {f"tasks/{task}/{name}": value for name, value in figures_of(counts).items()}
        if filled := self.filled:
            refilled = {
                "refilled": filled.further,
                "expired": filled.expired,
                "reused": filled.reused,
                "carried": count(filled.carried),
                "missing": filled.missing,
            }
            figures |= {f"groups/{name}": float(value) for name, value in refilled.items()}
        return figures


def counts_of(stats: GroupStats) -> Counter[str]:
    """Count the groups by their kind, and the completions that were scored and that are right."""
    return Counter(
        generated=stats.kept.numel(),
        kept=int(stats.kept.sum()),
        all_right=int(stats.all_right.sum()),
        all_wrong=int(stats.all_wrong.sum()),
        unscored=int((stats.scored == 0).sum()),
        right=int(stats.right.sum()),
        scored=int(stats.scored.sum()),
    )


def figures_of(counts: Counter[str]) -> dict[str, float]:
    """Return shares and numbers of groups, and the share of right completions if any was scored."""
    groups = max(counts["generated"], 1)
    figures = {
        "groups/all_right": counts["all_right"] / groups,
        "groups/all_wrong": counts["all_wrong"] / groups,
        "groups/mixed": counts["kept"] / groups,
        "groups/unscored": counts["unscored"] / groups,
        "groups/generated": float(counts["generated"]),
        "groups/kept": float(counts["kept"]),
    }
    if counts["scored"]:
        figures["groups/pass_rate"] = counts["right"] / counts["scored"]
    return figures
