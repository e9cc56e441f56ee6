"""Figures of micro-batches and generations, and how those of a step become one value each.

TRL makes six to eight calls to the other ranks in each micro-batch, only to log. Here each rank notes sums and extremes on its
device, and the step's end brings them together in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from grpo_ext.objective.advantage import nan_std
from grpo_ext.objective.aggregate import Stat


class StepStats:
    """The figures that the micro-batches of one step have noted so far on this rank."""

    def __init__(self) -> None:
        self._noted: dict[str, list[Stat]] = {}

    def note(self, stats: Mapping[str, Stat]) -> None:
        """Add the figures of one micro-batch."""
        for name, stat in stats.items():
            self._noted.setdefault(name, []).append(stat)

    def settle(self, gather: Callable[[Tensor], Tensor], device: torch.device) -> dict[str, float]:
        """One value a name, over micro-batches and ranks, and start anew. All ranks have noted the same names.

        Args:
            gather: concatenates the tensors of all ranks along their first dimension.
            device: where `gather` takes tensors.
        """
        noted, self._noted = self._noted, {}
        names = sorted(noted)
        if not names:
            return {}
        dtype = torch.float32 if device.type == "mps" else torch.float64
        mine = torch.stack([_brought_together(noted[name], device, dtype) for name in names])  # (names, 2)
        found = {}
        for name, ranks in zip(names, gather(mine).view(-1, len(names), 2).unbind(1), strict=True):
            stats = [Stat(value, weight, noted[name][0].kind) for value, weight in ranks]
            value, weight = _brought_together(stats, ranks.device, dtype).tolist()
            value = value / weight if weight and stats[0].kind == "mean" else value
            if weight and math.isfinite(value):
                found[name] = value
        return found


def _brought_together(stats: list[Stat], device: torch.device, dtype: torch.dtype) -> Tensor:
    """(2,), value and weight of several figures of one name; what is not a number is left out."""
    values = torch.stack([torch.as_tensor(stat.value).detach().to(device, dtype) for stat in stats])
    weights = torch.stack([torch.as_tensor(stat.weight).detach().to(device, dtype) for stat in stats])
    heard = (weights > 0) & ~values.isnan()
    if stats[0].kind in ("mean", "sum"):
        value = values.masked_fill(~heard, 0.0).sum()
    elif stats[0].kind == "min":
        value = values.masked_fill(~heard, torch.inf).amin()
    else:
        value = values.masked_fill(~heard, -torch.inf).amax()
    return torch.stack([value, weights.masked_fill(~heard, 0.0).sum()])


def length_figures(lengths: Tensor, truncated: Tensor) -> dict[str, float]:
    """Lengths of the completions of all ranks.

    Args:
        lengths: (B,), tokens.
        truncated: (B,), bool, cut off at a limit.
    """
    ended = lengths[~truncated].float()
    ended = ended if len(ended) else torch.zeros(1)
    lengths = lengths.float()
    return {
        "completions/mean_length": lengths.mean().item(),
        "completions/min_length": lengths.min().item(),
        "completions/max_length": lengths.max().item(),
        "completions/clipped_ratio": truncated.float().mean().item(),
        "completions/mean_terminated_length": ended.mean().item(),
        "completions/min_terminated_length": ended.min().item(),
        "completions/max_terminated_length": ended.max().item(),
    }


def reward_figures(names: Sequence[str], rewards: Tensor, weighted: Tensor, signal: Tensor) -> dict[str, float]:
    """Rewards of the completions of all ranks.

    Args:
        names: of the R rewards.
        rewards: (B, R).
        weighted: (B,), their weighted sum.
        signal: (B,), whether the group's rewards differ.
    """
    figures = {}
    for i, name in enumerate(names):
        figures[f"rewards/{name}/mean"] = rewards[:, i].nanmean().item()
        figures[f"rewards/{name}/std"] = nan_std(rewards[:, i], 0).item()
    figures |= {"reward": weighted.nanmean().item(), "reward_std": nan_std(weighted, 0).item()}
    return {**figures, "frac_reward_zero_std": 1.0 - signal.float().mean().item()}


def sampler_stats(scored: Tensor, sampled: Tensor, mask: Tensor, weights: Tensor | None) -> dict[str, Stat]:
    """How far log-probs as scored are from the sampler's own.

    Args:
        scored: (B, T), of the policy that sampled, as scored here.
        sampled: (B, T), the sampler's; NaN where it noted none.
        mask: (B, T).
        weights: the importance sampling ratio that the loss is multiplied by; `None` for none.
    """
    difference = (scored.detach() - sampled)[mask.bool() & ~sampled.isnan()].float()  # (tokens,)
    number, ratio = difference.numel(), difference.exp()
    ends = (difference.abs().amax(), ratio.amin(), ratio.amax()) if number else (0.0, 0.0, 0.0)
    stats = {
        "logp_difference/mean": Stat(difference.abs().sum(), number),
        "logp_difference/max": Stat(ends[0], number, "max"),
        "ratio/mean": Stat(ratio.sum(), number),
        "ratio/min": Stat(ends[1], number, "min"),
        "ratio/max": Stat(ends[2], number, "max"),
        "ratio/share_masked": Stat(0.0) if weights is None else Stat((weights == 0).sum(), weights.numel()),
    }
    return {f"sampling/{name}": stat for name, stat in stats.items()}
