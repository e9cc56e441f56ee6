"""Compute the metrics to log about the groups of each generation."""

from collections import defaultdict
from collections.abc import Sequence

from torch import Tensor

from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.metrics import rows_by_task
from grpo_ext.step.refill import Filled


class GroupLog:
    """Group counts of the current generation, over all groups and by task."""

    def start(self) -> None:
        """Begin a generation and reset all counts."""
        self._sums: dict[str, float] = defaultdict(float)
        self._by_task: dict[str, dict[str, float]] = {}
        self.filled: Filled | None = None  # how the step was refilled

    def generated(self, stats: GroupStats, reward_stds: Tensor, tasks: Sequence[str] = ()) -> None:
        """Count groups that were generated and judged.

        Args:
            stats: the statistics of N groups.
            reward_stds: (N,), the std of the weighted rewards within each group; NaN where it is
                undefined.
            tasks: (N,), the task of each group; empty if there is only one task.
        """
        add_sums(self._sums, stats, reward_stds)
        for task, groups in rows_by_task(tasks).items():
            sums = self._by_task.setdefault(task, defaultdict(float))
            add_sums(sums, stats.take(groups), reward_stds[groups])

    def figures(self) -> dict[str, float]:
        """Return the metrics of the generation by log name; a task's begin with `tasks/NAME/`."""
        figures = figures_of(self._sums)
        for task, sums in self._by_task.items():
            for name, figure in figures_of(sums).items():
                figures[f"tasks/{task}/{name}"] = figure
        if self.filled is not None:
            figures["groups/refilled"] = float(self.filled.further)
            figures["groups/expired"] = float(self.filled.expired)
            figures["groups/reused"] = float(self.filled.reused)
            figures["groups/carried"] = float(count(self.filled.carried))
            figures["groups/missing"] = float(self.filled.missing)
        return figures


def add_sums(sums: dict[str, float], stats: GroupStats, reward_stds: Tensor) -> None:
    """Accumulate group counts by kind, completion counts and reward stds into `sums`.

    Args:
        sums: the sums, changed in place.
        stats: the statistics of N groups.
        reward_stds: (N,), the std of each group. Those that are not NaN are summed under `std` and
            counted under `with_std`.
    """
    sums["generated"] += stats.kept.numel()
    sums["kept"] += int(stats.kept.sum())
    sums["mixed"] += int(stats.mixed.sum())
    sums["all_right"] += int(stats.all_right.sum())
    sums["all_wrong"] += int(stats.all_wrong.sum())
    sums["unscored"] += int((stats.scored == 0).sum())
    sums["right"] += int(stats.right.sum())
    sums["scored"] += int(stats.scored.sum())
    sums["with_std"] += int((~reward_stds.isnan()).sum())
    sums["std"] += float(reward_stds.nansum())
    if stats.tied is not None:
        sums["tied"] += int(stats.tied.sum())


def figures_of(sums: dict[str, float]) -> dict[str, float]:
    """Return the metrics `groups/...` from the sums of `add_sums`.

    `groups/pass_rate` is omitted if no completion was scored, `groups/reward_std` if no group has
    an std, and `groups/tie_broken` without a tie-break reward.
    """
    groups = max(sums["generated"], 1)
    figures = {
        "groups/all_right": sums["all_right"] / groups,
        "groups/all_wrong": sums["all_wrong"] / groups,
        "groups/mixed": sums["mixed"] / groups,
        "groups/unscored": sums["unscored"] / groups,
        "groups/generated": float(sums["generated"]),
        "groups/kept": float(sums["kept"]),
    }
    if sums["scored"]:
        figures["groups/pass_rate"] = sums["right"] / sums["scored"]
    if sums["with_std"]:
        figures["groups/reward_std"] = sums["std"] / sums["with_std"]
    if "tied" in sums:
        figures["groups/tie_broken"] = sums["tied"] / groups
    return figures
