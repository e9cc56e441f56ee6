"""Figures of micro-batches and generations, and how those of a step are merged into one value each.

TRL calls the other ranks six to eight times in each micro-batch, only to log. Here each rank
records sums and extremes on its device, and one call at the end of the step merges them.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_ext.common.estimates import variance_of_mean
from grpo_ext.objective.aggregate import Stat
from grpo_ext.objective.group_statistics import nan_std
from grpo_ext.step.ranks import Ranks

FAR_RATIO = 0.1  # from 1: a token whose ratio is further away counts as far
MOST_TASKS = 32  # with more tasks in a generation, no figures by task are logged


class StepStats:
    """The figures of the micro-batches of one step on this rank."""

    def __init__(self) -> None:
        self._noted: dict[str, list[Stat]] = {}

    def add(self, stats: Mapping[str, Stat]) -> None:
        """Add the figures of one micro-batch."""
        for name, stat in stats.items():
            self._noted.setdefault(name, []).append(stat)

    def merge(self, ranks: Ranks) -> dict[str, float]:
        """Merge the figures over micro-batches and ranks into one value each, and clear them.

        All ranks call this together, and must have figures of the same names.
        """
        noted = self._noted
        self._noted = {}
        names = sorted(noted)
        if not names:
            return {}
        kinds = {name: noted[name][0].kind for name in names}
        merged = [_merged(_table_of(noted[name], ranks), kinds[name]) for name in names]
        # (ranks, names, 2)
        by_rank = ranks.gather(torch.stack(merged)).view(-1, len(names), 2)
        figures = {}
        for name, table in zip(names, by_rank.unbind(1), strict=True):
            value, weight = _merged(table, kinds[name]).tolist()
            if weight and kinds[name] == "mean":
                value = value / weight
            if weight and math.isfinite(value):
                figures[name] = value
        return figures


def _table_of(stats: list[Stat], ranks: Ranks) -> Tensor:
    """Return values and weights of several figures: (figures, 2)."""
    numbers = []
    for stat in stats:
        for number in (stat.value, stat.weight):
            numbers.append(torch.as_tensor(number).detach().to(ranks.device, ranks.float_type))
    return torch.stack(numbers).view(-1, 2)


def _merged(table: Tensor, kind: str) -> Tensor:
    """Return value and weight (2,) of several figures of one name (figures, 2); NaN values are
    left out.
    """
    values, weights = table.unbind(1)  # (figures,)
    unused = (weights <= 0) | values.isnan()
    if kind == "min":
        merged = values.masked_fill(unused, torch.inf).amin()
    elif kind == "max":
        merged = values.masked_fill(unused, -torch.inf).amax()
    else:
        merged = values.masked_fill(unused, 0.0).sum()
    return torch.stack([merged, weights.masked_fill(unused, 0.0).sum()])


def length_figures(lengths: Tensor, truncated: Tensor) -> dict[str, float]:
    """Return the figures for the lengths (B,) of the completions of all ranks; `truncated` (B,),
    bool.
    """
    figures = {"completions/clipped_ratio": truncated.float().mean().item()}
    columns = {"length": lengths, "terminated_length": lengths[~truncated]}
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
    """Return the figures for the rewards (B, R) of the completions of all ranks, NaN where a reward
    did not score.

    The figures of a reward are of the completions that it scored; a reward that scored none has no
    figures.

    Args:
        names: of the R rewards.
        rewards: (B, R), before their weights.
        weighted: (B,), their weighted sum.
        signal: (B,), bool, whether the completion's group has a policy gradient.
        groups: (B,), the number of each completion's group; adds the standard error of each mean
            under its name and `_se`. Default: no errors.
    """
    figures: dict[str, float] = {}
    for i, name in enumerate(names):
        if rewards[:, i].isnan().all():
            continue
        figures |= mean_figures(f"rewards/{name}/mean", rewards[:, i], groups)
        figures[f"rewards/{name}/std"] = nan_std(rewards[:, i], 0).item()
    figures |= mean_figures("reward", weighted, groups)
    figures["reward_std"] = nan_std(weighted, 0).item()
    figures["frac_reward_zero_std"] = 1.0 - signal.float().mean().item()
    return figures


def mean_figures(name: str, values: Tensor, groups: Tensor | None) -> dict[str, float]:
    """Return the mean of values (B,) without NaN entries under `name` and, if `groups` (B,) has at
    least two groups with values, its standard error under `name` and `_se`.

    The completions of a group answer one prompt and are not independent, so the error is
    cluster-robust (Liang and Zeger 1986).
    """
    figures = {name: values.nanmean().item()}
    if groups is None:
        return figures
    scored = ~values.isnan()
    _, cluster = np.unique(groups[scored].cpu().numpy(), return_inverse=True)
    if cluster.size and cluster.max() > 0:
        variance = variance_of_mean(values[scored].cpu().double().numpy(), cluster)
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
    """Return `length_figures` and `reward_figures`; with the `tasks` of the completions, also of
    each task alone.

    A task NAME has the same figures under `tasks/NAME/` as a run of its rows alone would have.
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
    """Return the positions of each task, by its name in sorted order; nothing for more than
    `MOST_TASKS` tasks.
    """
    if len(set(tasks)) > MOST_TASKS:
        return {}
    rows: dict[str, list[int]] = {task: [] for task in sorted(set(tasks))}
    for row, task in enumerate(tasks):
        rows[task].append(row)
    return rows


def episode_figures(counts: Sequence[Sequence[int]], tools: bool, ranks: Ranks) -> dict[str, float]:
    """Return the means per episode over all ranks; with `tools` also those of tool calls, under
    TRL's names.

    `counts` has for each episode its turns, failures, tool calls, and failed tool calls.
    """
    table = torch.tensor(counts, dtype=torch.float32, device=ranks.device)  # (B, 4)
    number = table.new_tensor([len(counts)])
    sums = ranks.total(torch.cat([table.sum(0), number])).tolist()
    turns, failures, calls, failed_calls, episodes = sums
    figures = {"episodes/turns": turns / episodes, "episodes/failures": failures / episodes}
    if tools:
        figures |= {
            "tools/call_frequency": calls / episodes,
            "tools/failure_frequency": failed_calls / max(calls, 1),
        }
    return figures


def sampler_stats(
    scored: Tensor, sampled: Tensor, mask: Tensor, weights: Tensor | None
) -> dict[str, Stat]:
    """Return how far the log-probs that were scored here are from those of the sampler.

    `sampling/kl` estimates the KL divergence of the policy as scored here from the sampler, in nats
    a token, by r - 1 - log r with the ratio r (http://joschu.net/blog/kl-approx.html, k3).

    Args:
        scored: (B, T), of the policy that sampled, as scored here.
        sampled: (B, T), of the sampler; NaN where it returned none.
        mask: (B, T).
        weights: the importance sampling ratio that multiplies the loss; `None`: there is none.
    """
    is_compared = mask.bool() & ~sampled.isnan()
    difference = (scored.detach() - sampled)[is_compared].float()  # (tokens,)
    num_tokens = difference.numel()
    ratio = difference.exp()
    is_far = (ratio - 1).abs() > FAR_RATIO
    masked = Stat(0.0)
    if weights is not None:
        masked = Stat((mask * (weights == 0)).sum(), mask.sum())
    return {
        **_spread("sampling/logp_difference", difference.abs(), "mean", "max"),
        **_spread("sampling/ratio", ratio),
        "sampling/ratio/share_far": Stat(is_far.sum(), num_tokens),
        "sampling/kl": Stat((difference.expm1() - difference).sum(), num_tokens),
        "sampling/ratio/share_masked": masked,
    }


def age_stats(policy_step: Tensor, mask: Tensor, step: int) -> dict[str, Stat]:
    """Return the mean age of the tokens of a micro-batch, in optimizer steps.

    Args:
        policy_step: (B, T), the step whose weights sampled each token.
        mask: (B, T).
        step: the step that trains on them, which later updates on the same generation raise.
    """
    return {"overlap/age": Stat(((step - policy_step) * mask).sum(), mask.sum())}


def _spread(name: str, values: Tensor, *kinds: str) -> dict[str, Stat]:
    """Return mean, minimum and maximum of values (N,), or only these `kinds` of them."""
    number = values.numel()
    padded = values if number else values.new_zeros(1)
    stats = {
        "mean": Stat(values.sum(), number),
        "min": Stat(padded.amin(), number, "min"),
        "max": Stat(padded.amax(), number, "max"),
    }
    return {f"{name}/{kind}": stats[kind] for kind in kinds or stats}
