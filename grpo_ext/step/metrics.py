"""Metrics of generations, and metrics of micro-batches merged into one value per step.

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
        """Merge the metrics over micro-batches and ranks into one value per name, and clear them.

        A metric is left out if its total weight is 0 or its value is not finite. All ranks must
        call this together, with the same metric names.
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
    """Return the values and weights of `stats` as one tensor (stats, 2) on this rank's device."""
    numbers = []
    for stat in stats:
        for number in (stat.value, stat.weight):
            scalar = torch.as_tensor(number).detach()
            numbers.append(scalar.to(ranks.device, ranks.float_type))
    return torch.stack(numbers).view(-1, 2)


def _merged(table: Tensor, kind: str) -> Tensor:
    """Merge the stats of one metric (stats, 2) into a value and a weight (2,).

    The value is the minimum for the kind "min", the maximum for "max", and the sum for all others.
    The weight is the sum of the weights. Stats with the value NaN or a weight of 0 are skipped.
    """
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
    """Return metrics of completion lengths, under names that start with `completions/`.

    - `clipped_ratio` is the share of truncated completions;
    - `mean_length`, `min_length` and `max_length` are over all completions;
    - `mean_terminated_length`, `min_terminated_length` and `max_terminated_length` are over the
      completions that were not truncated, and 0 if there are none.

    Args:
        lengths: (B,), the lengths of all ranks' completions, in tokens.
        truncated: a bool mask (B,) of truncated completions.
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
    """Return reward metrics over the completions of all ranks.

    They are `rewards/NAME/mean` and `rewards/NAME/std` for each reward, `reward` and `reward_std`
    for the weighted sum, and `frac_reward_zero_std`, the share of completions in groups in which
    all advantages are 0. The metrics of a reward cover only the completions that it scored, and are
    left out if it scored none.

    Args:
        names: the names of the R rewards.
        rewards: (B, R), the rewards before weighting; NaN where a reward did not score.
        weighted: (B,), the weighted sums of the rewards.
        signal: (B,), nonzero if any completion of the group has a nonzero advantage.
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
    """Return the mean of `values` as `{name}`, and its standard error as `{name}_se`.

    The completions of a group answer one prompt and are not independent, so the standard error is
    cluster-robust (Liang and Zeger 1986). It is left out if fewer than two groups have values.

    Args:
        name: the name of the mean.
        values: (B,), the values; NaN is ignored. If all are NaN, the mean is NaN.
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
    """Return the metrics of `length_figures` and `reward_figures`, overall and for each task.

    The metrics of the task NAME are computed from its completions alone, and their names start with
    `tasks/NAME/`.

    Args:
        names: the names of the R rewards.
        rewards: (B, R), the rewards before weighting; NaN where a reward did not score.
        weighted: (B,), the weighted sums of the rewards.
        signal: (B,), nonzero if any completion of the group has a nonzero advantage.
        lengths: (B,), the lengths of the completions, in tokens.
        truncated: a bool mask (B,) of truncated completions.
        tasks: the task of each completion. If it is empty or has more than `MOST_TASKS` different
            tasks, there are no metrics per task.
        groups: (B,), the index of each completion's group; `None` for no standard errors.
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
    """Return the row indices of each task; `{}` if there are more than `MOST_TASKS` tasks."""
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
    """Return metrics that compare the trainer's log-probs with the sampler's.

    Let r be a token's probability under the policy, as scored by the trainer, divided by the
    sampler's probability. The metrics are:

    - `sampling/logp_difference/mean` and `.../max`, of |log r|;
    - `sampling/ratio/mean`, `.../min` and `.../max`, of r;
    - `sampling/ratio/share_far`, the share of tokens where r differs from 1 by over `FAR_RATIO`;
    - `sampling/ratio/share_masked`, the share of tokens whose loss is multiplied by 0;
    - `sampling/kl`, the mean of r - 1 - log r, which estimates KL(sampler || policy) in nats per
      token (k3 of http://joschu.net/blog/kl-approx.html).

    `share_masked` covers all tokens in the loss. The other metrics skip tokens for which the
    sampler returned no log-prob.

    Args:
        scored: (B, T), the log-probs of the policy that sampled, as scored by the trainer.
        sampled: (B, T), the sampler's log-probs; NaN where it returned none.
        mask: (B, T), the loss mask.
        weights: (B, T) or (B, 1), the importance sampling ratio that multiplies the loss; `None` if
            there is none, so that `share_masked` is 0.
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
    """Return the metric `overlap/age`, the mean age of a micro-batch's tokens in optimizer steps.

    Args:
        policy_step: (B, T), the step whose weights sampled each token.
        mask: (B, T), the loss mask.
        step: the current step; tokens grow older with each update on the same generation.
    """
    age = (step - policy_step) * mask  # (B, T)
    return {"overlap/age": Stat(age.sum(), mask.sum())}


def _spread(name: str, values: Tensor, *kinds: str) -> dict[str, Stat]:
    """Return the metrics `{name}/mean`, `{name}/min` and `{name}/max` of `values` (N,).

    If `kinds` are given, return only those.
    """
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
    """Collects the group counts of a generation, in total and by task.

    Call `start` before the groups of each generation are counted.
    """

    def start(self) -> None:
        """Begin a generation and reset all counts."""
        self._sums: dict[str, float] = defaultdict(float)
        self._by_task: dict[str, dict[str, float]] = {}
        self.filled: Filled | None = None  # the result of `refill`; `None` if it was not called

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
        """Return the metrics of `figures_of`, in total and for each task under `tasks/NAME/`.

        If `filled` is set, also return its counts: `groups/refilled` (the field `further`),
        `groups/expired`, `groups/reused`, `groups/carried` and `groups/missing`.
        """
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
    """Return group metrics, computed from the sums that `add_sums` has filled.

    - `groups/generated` counts all groups, and `groups/kept` those with signal;
    - `groups/all_right`, `groups/all_wrong`, `groups/mixed`, `groups/unscored` and
      `groups/tie_broken` are shares of the groups;
    - `groups/pass_rate` is the share of scored completions that are correct;
    - `groups/reward_std` is the mean std of a group.

    `groups/pass_rate` is left out if no completion was scored, `groups/reward_std` if no group has
    a std, and `groups/tie_broken` if there is no tie-break reward.
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
