"""Advantages: how much better a completion is than its group.

    A_i = (r_i - mean(group)) / (std + 1e-4)

GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2) divides by the group's std, Dr. GRPO (arXiv 2503.20783) by nothing, and
`batch` by the std over all groups. The paper's std is that of a population; TRL's that of a sample (n - 1), which is larger by
sqrt(n / (n - 1)): with two completions the advantages are 0.71 instead of 1.
"""

from __future__ import annotations

import torch

_EPSILON = 1e-4


def group_advantages(
    rewards: torch.Tensor, num_generations: int, scale_rewards: str = "group", std_estimator: str = "sample"
) -> torch.Tensor:
    """Advantages of whole groups.

    A group whose rewards are all equal gets exactly 0, where subtracting a rounded mean would leave noise. A NaN reward marks
    a completion that was not scored: its advantage is 0 and the group's mean and std leave it out.

    Args:
        rewards: (B,), weighted and summed; B whole groups of `num_generations`.
        num_generations: completions a prompt.
        scale_rewards: "group", "batch" or "none": which std to divide by.
        std_estimator: "sample" (n - 1) or "population" (n).

    Returns:
        (B,).
    """
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    advantages = grouped - grouped.nanmean(dim=1, keepdim=True)
    if scale_rewards != "none":
        together = grouped if scale_rewards == "group" else rewards.view(1, -1)
        advantages = advantages / (nan_std(together, 1, std_estimator) + _EPSILON)
    return advantages.nan_to_num(nan=0.0).view(-1).masked_fill(no_signal(rewards, num_generations), 0.0)


def no_signal(rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Completions of groups whose rewards are all equal, by max - min; a completion without a reward does not count.

    Args:
        rewards: (B,); NaN marks a completion that was not scored.
        num_generations: completions a prompt.

    Returns:
        (B,), bool.
    """
    grouped = rewards.view(-1, num_generations)
    missing = grouped.isnan()
    highest = grouped.masked_fill(missing, -torch.inf).amax(1)
    lowest = grouped.masked_fill(missing, torch.inf).amin(1)
    return (highest <= lowest).repeat_interleave(num_generations)


def nan_std(values: torch.Tensor, dim: int, estimator: str = "sample") -> torch.Tensor:
    """Standard deviation along `dim`, kept; NaN entries left out. NaN where the estimator is not defined."""
    count = (~values.isnan()).sum(dim, keepdim=True)
    squares = ((values - values.nanmean(dim, keepdim=True)) ** 2).nansum(dim, keepdim=True)
    return (squares / (count - 1 if estimator == "sample" else count)).sqrt()


def normalized_then_summed(rewards: torch.Tensor, weights: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Advantages where each reward is normalised by itself: GDPO (arXiv 2601.05242), as TRL computes it.

    Within each group a reward is centred and divided by its std, then the weighted sum is centred and divided by its std over
    the batch.

    Args:
        rewards: (B, R), B whole groups; NaN where a reward did not score a completion.
        weights: (R,).
        num_generations: completions a prompt.

    Returns:
        (B,).
    """
    grouped = rewards.view(-1, num_generations, rewards.size(1))  # (groups, G, R)
    each = (grouped - grouped.nanmean(dim=1, keepdim=True)) / (nan_std(grouped, 1) + _EPSILON)
    total = (each.view_as(rewards) * weights).nansum(dim=1)  # (B,)
    total = total.masked_fill(rewards.isnan().all(dim=1), torch.nan)
    return ((total - total.nanmean()) / (nan_std(total, 0) + _EPSILON)).nan_to_num(nan=0.0)
