"""Metrics of micro-batches and generations, merged into one value per step.

TRL communicates between ranks six to eight times per micro-batch just to log. Here each rank
records sums and extremes on its device, and one collective call at the end of the step merges them.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_ext.common.estimates import variance_of_mean
from grpo_ext.objective.advantage import nan_std
from grpo_ext.objective.policy import Stat
from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.records import Ranks
from grpo_ext.step.refill import Filled

FAR_RATIO = 0.1  # a token counts as far if its ratio differs from 1 by more than this
MOST_TASKS = 32  # with more tasks in a generation, no metrics per task are logged


class StepStats:
    """Collects the metrics of one step's micro-batches on this rank."""

    def __init__(self) -> None:
        self._noted: dict[str, list[Stat]] = {}

    def add(self, stats: Mapping[str, Stat]) -> None:
        """Add the metrics of one micro-batch."""
        for name, stat in stats.items():
            self._noted.setdefault(name, []).append(stat)

    def merge(self, ranks: Ranks) -> dict[str, float]:
        """Merge the metrics over micro-batches and ranks into one value each, and clear them.

        All ranks must call this together, with metrics of the same names. Metrics without weight or
        without a finite value are left out.
        """
        noted = self._noted
        self._noted = {}
        names = sorted(noted)
        if not names:
            return {}
        kinds = {name: noted[name][0].kind for name in names}
        merged = []
        for name in names:
            table = _table_of(noted[name], ranks)  # (stats, 2)
            merged.append(_merged(table, kinds[name]))
        gathered = ranks.gather(torch.stack(merged))  # (ranks * names, 2)
        by_rank = gathered.view(-1, len(names), 2)  # (ranks, names, 2)
        figures = {}
        for name, table in zip(names, by_rank.unbind(1), strict=True):
            value, weight = _merged(table, kinds[name]).tolist()
            if not weight:
                continue
            if kinds[name] == "mean":
                value = value / weight
            if math.isfinite(value):
                figures[name] = value
        return figures


def _table_of(stats: list[Stat], ranks: Ranks) -> Tensor:
    """Return the values and weights of several stats, (stats, 2)."""
    numbers = []
    for stat in stats:
        for number in (stat.value, stat.weight):
            scalar = torch.as_tensor(number).detach()
            numbers.append(scalar.to(ranks.device, ranks.float_type))
    return torch.stack(numbers).view(-1, 2)


def _merged(table: Tensor, kind: str) -> Tensor:
    """Merge the stats of one name (stats, 2) into a value and a weight (2,), skipping NaN."""
    values, weights = table.unbind(1)  # (stats,)
    unused = (weights <= 0) | values.isnan()  # (stats,)
    if kind == "min":
        value = values.masked_fill(unused, torch.inf).amin()
    elif kind == "max":
        value = values.masked_fill(unused, -torch.inf).amax()
    else:
        value = values.masked_fill(unused, 0.0).sum()
    weight = weights.masked_fill(unused, 0.0).sum()
    return torch.stack([value, weight])


def length_figures(lengths: Tensor, truncated: Tensor) -> dict[str, float]:
    """Return metrics of the lengths (B,) of all ranks' completions.

    `truncated` is a bool mask (B,). If all are truncated, the metrics of terminated lengths are 0.
    """
    figures = {"completions/clipped_ratio": truncated.float().mean().item()}
    columns = {
        "length": lengths,
        "terminated_length": lengths[~truncated],
    }
    for name, column in columns.items():
        if len(column) == 0:
            column = torch.zeros(1)
        figures[f"completions/mean_{name}"] = column.float().mean().item()
        figures[f"completions/min_{name}"] = float(column.min())
        figures[f"completions/max_{name}"] = float(column.max())
    return figures


def reward_figures(
    names: Sequence[str],
    rewards: Tensor,
    weighted: Tensor,
    signal: Tensor,
    groups: Tensor | None = None,
) -> dict[str, float]:
    """Return metrics of the rewards of all ranks' completions.

    Each reward's metrics cover only the completions that it scored; a reward that scored none has
    no metrics.

    Args:
        names: the names of the R rewards.
        rewards: the rewards (B, R), without their weights; NaN where a reward did not score.
        weighted: the weighted sums of the rewards, (B,).
        signal: (B,), nonzero if any completion of the group has an advantage.
        groups: (B,), the index of each completion's group. If given, the standard error of each
            mean is added, with `_se` appended to the mean's name.
    """
    figures: dict[str, float] = {}
    for i, name in enumerate(names):
        column = rewards[:, i]  # (B,)
        if column.isnan().all():
            continue
        figures |= mean_figures(f"rewards/{name}/mean", column, groups)
        figures[f"rewards/{name}/std"] = nan_std(column, 0).item()
    figures |= mean_figures("reward", weighted, groups)
    figures["reward_std"] = nan_std(weighted, 0).item()
    figures["frac_reward_zero_std"] = 1.0 - signal.float().mean().item()
    return figures


def mean_figures(name: str, values: Tensor, groups: Tensor | None) -> dict[str, float]:
    """Return the mean of `values` (B,), ignoring NaN, and its standard error.

    The standard error has the name `{name}_se`, and is added only if `groups` (B,) has at least two
    groups with values. The completions of a group answer one prompt and are not independent, so the
    error is cluster-robust (Liang and Zeger 1986).

    Args:
        name: the name of the mean.
        values: (B,), the values; NaN is ignored.
        groups: (B,), the index of each value's group; `None` for no standard error.
    """
    figures = {name: values.nanmean().item()}
    if groups is None:
        return figures
    scored = ~values.isnan()  # (B,)
    scored_values = values[scored].cpu().double().numpy()
    scored_groups = groups[scored].cpu().numpy()
    _, cluster = np.unique(scored_groups, return_inverse=True)
    if cluster.size and cluster.max() > 0:
        variance = variance_of_mean(scored_values, cluster)
        figures[f"{name}_se"] = math.sqrt(variance)
    return figures


def generation_figures(
    names: Sequence[str],
    rewards: Tensor,
    weighted: Tensor,
    signal: Tensor,
    lengths: Tensor,
    truncated: Tensor,
    tasks: Sequence[str] = (),
    groups: Tensor | None = None,
) -> dict[str, float]:
    """Return `length_figures` and `reward_figures`, overall and for each task.

    The metrics of a task NAME are under `tasks/NAME/`, with the values that a run of its rows alone
    would have.

    Args:
        names: the names of the R rewards.
        rewards: see `reward_figures`.
        weighted: see `reward_figures`.
        signal: see `reward_figures`.
        lengths: (B,), the lengths of the completions.
        truncated: a bool mask (B,) of truncated completions.
        tasks: the task of each completion. If it is empty or has more than `MOST_TASKS` different
            tasks, there are no metrics of tasks.
        groups: see `reward_figures`.
    """
    figures = length_figures(lengths, truncated)
    figures |= reward_figures(names, rewards, weighted, signal, groups)
    for task, rows in rows_by_task(tasks).items():
        task_figures = generation_figures(
            names,
            rewards[rows],
            weighted[rows],
            signal[rows],
            lengths[rows],
            truncated[rows],
            groups=None if groups is None else groups[rows],
        )
        for name, value in task_figures.items():
            figures[f"tasks/{task}/{name}"] = value
    return figures


def rows_by_task(tasks: Sequence[str]) -> dict[str, list[int]]:
    """Return the row indices of each task, by name; empty if there are more than `MOST_TASKS`."""
    names = sorted(set(tasks))
    if len(names) > MOST_TASKS:
        return {}
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, task in enumerate(tasks):
        rows[task].append(row)
    return rows


def sampler_stats(
    scored: Tensor,
    sampled: Tensor,
    mask: Tensor,
    weights: Tensor | None,
) -> dict[str, Stat]:
    """Return stats on how far the trainer's log-probs are from the sampler's.

    `sampling/kl` estimates KL(sampler || policy), with the policy as scored by the trainer, in nats
    per token: the mean of r - 1 - log r, where r is the policy's probability divided by the
    sampler's (http://joschu.net/blog/kl-approx.html, k3).

    Args:
        scored: the log-probs (B, T) of the policy that sampled, as scored by the trainer.
        sampled: the sampler's log-probs (B, T); NaN where it returned none.
        mask: the loss mask (B, T).
        weights: the importance sampling ratio that multiplies the loss, (B, T) or (B, 1); `None` if
            there is none.
    """
    is_compared = mask.bool() & ~sampled.isnan()  # (B, T)
    difference = (scored.detach() - sampled)[is_compared]  # (tokens,)
    difference = difference.float()
    num_tokens = difference.numel()
    ratio = difference.exp()  # (tokens,)
    is_far = (ratio - 1).abs() > FAR_RATIO  # (tokens,)
    kl = difference.expm1() - difference  # (tokens,)
    masked = Stat(0.0)
    if weights is not None:
        is_masked = mask * (weights == 0)  # (B, T)
        masked = Stat(is_masked.sum(), mask.sum())
    return {
        **_spread("sampling/logp_difference", difference.abs(), "mean", "max"),
        **_spread("sampling/ratio", ratio),
        "sampling/ratio/share_far": Stat(is_far.sum(), num_tokens),
        "sampling/kl": Stat(kl.sum(), num_tokens),
        "sampling/ratio/share_masked": masked,
    }


def age_stats(policy_step: Tensor, mask: Tensor, step: int) -> dict[str, Stat]:
    """Return the mean age of the tokens of a micro-batch, in optimizer steps.

    Args:
        policy_step: the step whose weights sampled each token, (B, T).
        mask: the loss mask (B, T).
        step: the current step; tokens grow older with each update on the same generation.
    """
    age = (step - policy_step) * mask  # (B, T)
    return {"overlap/age": Stat(age.sum(), mask.sum())}


def _spread(name: str, values: Tensor, *kinds: str) -> dict[str, Stat]:
    """Return the mean, minimum and maximum of `values` (N,), or only the given `kinds`."""
    number = values.numel()
    padded = values if number else values.new_zeros(1)
    by_kind = {
        "mean": Stat(values.sum(), number),
        "min": Stat(padded.amin(), number, "min"),
        "max": Stat(padded.amax(), number, "max"),
    }
    stats = {}
    for kind in kinds or by_kind:
        stats[f"{name}/{kind}"] = by_kind[kind]
    return stats


class GroupLog:
    """Group counts of the current generation, in total and by task; call `start` first."""

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
            tasks: (N,), the task of each group; empty if the rows have no tasks.
        """
        add_sums(self._sums, stats, reward_stds)
        for task, groups in rows_by_task(tasks).items():
            sums = self._by_task.setdefault(task, defaultdict(float))
            add_sums(sums, stats.take(groups), reward_stds[groups])

    def figures(self) -> dict[str, float]:
        """Return the metrics of the generation by name, and of each task under `tasks/NAME/`."""
        figures = figures_of(self._sums)
        for task, sums in self._by_task.items():
            for name, figure in figures_of(sums).items():
                figures[f"tasks/{task}/{name}"] = figure
        filled = self.filled
        if filled is not None:
            figures["groups/refilled"] = float(filled.further)
            figures["groups/expired"] = float(filled.expired)
            figures["groups/reused"] = float(filled.reused)
            figures["groups/carried"] = float(count(filled.carried))
            figures["groups/missing"] = float(filled.missing)
        return figures


def add_sums(sums: dict[str, float], stats: GroupStats, reward_stds: Tensor) -> None:
    """Add the group counts, completion counts and reward stds of some groups to `sums`.

    Args:
        sums: the sums, changed in place.
        stats: the statistics of N groups.
        reward_stds: (N,), the std of each group. Those that are not NaN are summed under `std` and
            counted under `with_std`.
    """
    columns = {
        "kept": stats.kept,
        "mixed": stats.mixed,
        "all_right": stats.all_right,
        "all_wrong": stats.all_wrong,
        "unscored": stats.scored == 0,
        "right": stats.right,
        "scored": stats.scored,
        "with_std": ~reward_stds.isnan(),
    }
    if stats.tied is not None:
        columns["tied"] = stats.tied
    for name, column in columns.items():  # (N,)
        sums[name] += int(column.sum())
    sums["generated"] += stats.kept.numel()
    sums["std"] += float(reward_stds.nansum())


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
