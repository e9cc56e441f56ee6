"""Advantages: how much better a completion is than its group.

    A_i = (r_i - mean(group)) / (std + 1e-4)

GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2) divides by the std of the group, Dr. GRPO
(arXiv 2503.20783) does not divide, and `batch` divides by the std over all groups. The paper's std
is that of a population; TRL's is that of a sample (n - 1), which is larger by sqrt(n / (n - 1)):
with two completions the advantages are 0.71 instead of 1.

Division by a small std turns rounding errors into advantages. Rewards therefore stay in float64 up
to here, and rewards of a group that differ by no more than float64 rounds count as equal: their
advantages are exactly 0.
"""

import torch

_EPSILON = 1e-4
# Rewards of a group are equal if they differ by at most this many units of the last place: sums of
# up to 64 terms round so far.
_ROUNDING_UNITS = 64


def group_advantages(
    rewards: torch.Tensor,
    num_generations: int,
    scale_rewards: str = "group",
    std_estimator: str = "sample",
    magnitudes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the advantages (B,) of whole groups; exactly 0 throughout a group of equal rewards.

    A NaN reward marks a completion that was not scored: its advantage is 0, and the mean and std of
    the group leave it out.

    Args:
        rewards: (B,), weighted and summed; B whole groups of `num_generations`.
        num_generations: completions per prompt.
        scale_rewards: "group", "batch" or "none": which std to divide by.
        std_estimator: "sample" (n - 1) or "population" (n).
        magnitudes: (B,), as in `equal_in_group`.
    """
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    advantages = grouped - grouped.nanmean(dim=1, keepdim=True)
    if scale_rewards != "none":
        together = grouped if scale_rewards == "group" else rewards.view(1, -1)
        advantages = advantages / (nan_std(together, 1, std_estimator) + _EPSILON)
    equal = equal_in_group(rewards, num_generations, magnitudes)
    return advantages.nan_to_num(nan=0.0).view(-1).masked_fill(equal, 0.0)


def turn_advantages(
    rewards: torch.Tensor,
    gains: torch.Tensor,
    turns: torch.Tensor,
    num_generations: int,
    scale_rewards: str = "group",
    std_estimator: str = "sample",
) -> torch.Tensor:
    """Return the advantages of turns: the reward that an episode earns from a turn on, compared
    with that turn of its group.

        G_ik = r_i - sum over j < k of g_ij,    A_ik = (G_ik - mean_k) / (std_k + 1e-4)

    Rewards to go as in process supervision (DeepSeekMath, section 4.1.3), but normalised after they
    are summed, among the episodes of the group that have a turn k. Episodes of one turn get the
    same advantages as from `group_advantages`.

    Args:
        rewards: (B,), weighted and summed, of whole episodes; NaN marks one that was not scored.
        gains: (B, K), the part of the reward that came with each turn; the rest came with the last
            turn.
        turns: (B,), the number of turns of each episode, at most K.
        num_generations: completions per prompt.
        scale_rewards: "group", or "none": no division.
        std_estimator: "sample" (n - 1) or "population" (n).

    Returns:
        (B, K), 0 for turns that an episode does not have.
    """

    def by_turn(table: torch.Tensor) -> torch.Tensor:
        """Flatten (B, K) so that the same turn of a group's episodes is adjacent."""
        return table.view(-1, num_generations, gains.size(1)).transpose(1, 2).reshape(-1)

    to_go = rewards.unsqueeze(1) - (gains.cumsum(1) - gains)  # (B, K)
    absent = torch.arange(gains.size(1), device=gains.device) >= turns.unsqueeze(1)
    # What is left of large gains carries their rounding errors.
    magnitudes = rewards.abs().unsqueeze(1) + gains.abs().cumsum(1)  # (B, K)
    advantages = group_advantages(
        by_turn(to_go.masked_fill(absent, torch.nan)),
        num_generations,
        scale_rewards,
        std_estimator,
        by_turn(magnitudes),
    )
    grouped = advantages.view(-1, gains.size(1), num_generations)  # (groups, K, G)
    return grouped.transpose(1, 2).reshape(len(rewards), -1)


def equal_in_group(
    rewards: torch.Tensor, num_generations: int, magnitudes: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (B,), bool, whether the rewards of a completion's group are equal, up to the rounding
    of their sums.

    Args:
        rewards: (B,), whole groups; NaN rewards are left out, and a group of NaN is equal.
        num_generations: completions per prompt.
        magnitudes: (B,), the sum of the absolute values that each reward was added up from; `None`:
            those of the rewards.
    """
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    missing = grouped.isnan()
    sizes = (rewards if magnitudes is None else magnitudes).abs().view_as(grouped)
    largest = sizes.masked_fill(missing, 0.0).amax(1)  # (groups,)
    highest = grouped.masked_fill(missing, -torch.inf).amax(1)
    lowest = grouped.masked_fill(missing, torch.inf).amin(1)
    rounding = _ROUNDING_UNITS * torch.finfo(rewards.dtype).eps * largest
    return (highest - lowest <= rounding).repeat_interleave(num_generations)


def has_signal(advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Return (B,), bool, whether any advantage of a completion's group is not 0.

    Args:
        advantages: (B,), or (B, K) of turns: episodes of equal rewards differ if they earned them
            in different turns.
        num_generations: completions per prompt.
    """
    by_group = advantages.reshape(len(advantages) // num_generations, -1)
    return (by_group != 0).any(1).repeat_interleave(num_generations)


def nan_std(values: torch.Tensor, dim: int, estimator: str = "sample") -> torch.Tensor:
    """Return the standard deviation along `dim`, leaving out NaN entries.

    Args:
        values: any shape; `dim` is kept with size 1.
        dim: the dimension to reduce.
        estimator: "sample" (n - 1) or "population" (n).

    Returns:
        The standard deviation; NaN where it is not defined.
    """
    count = (~values.isnan()).sum(dim, keepdim=True)
    deviations = values - values.nanmean(dim, keepdim=True)
    sum_of_squares = (deviations**2).nansum(dim, keepdim=True)
    divisor = count - 1 if estimator == "sample" else count
    return (sum_of_squares / divisor).sqrt()


def group_stds(
    rewards: torch.Tensor, num_generations: int, std_estimator: str = "sample"
) -> torch.Tensor:
    """Return the std (N,) of the rewards within each group; NaN where fewer than two were scored.

    Args:
        rewards: (B,), weighted and summed; B whole groups of `num_generations`, NaN for a
            completion that was not scored.
        num_generations: completions per prompt.
        std_estimator: "sample" (n - 1) or "population" (n).
    """
    grouped = rewards.view(-1, num_generations)  # (N, G)
    too_few = (~grouped.isnan()).sum(dim=1) < 2  # (N,)
    return nan_std(grouped, 1, std_estimator).squeeze(1).masked_fill(too_few, torch.nan)


def normalized_then_summed(
    rewards: torch.Tensor, weights: torch.Tensor, num_generations: int
) -> torch.Tensor:
    """Return advantages (B,) with each reward normalised separately: GDPO (arXiv 2601.05242).

    As in TRL, each reward is centred and divided by its std within the group; then the weighted
    sum is centred and divided by its std over the batch. A group in which no weighted reward
    differs gets exactly 0.

    Args:
        rewards: (B, R), B whole groups; NaN if a reward did not score a completion.
        weights: (R,).
        num_generations: completions per prompt.
    """
    normalized = [group_advantages(column, num_generations) for column in rewards.unbind(1)]
    weighted = torch.stack(normalized, dim=1) * weights  # (B, R)
    unscored = rewards.isnan().all(dim=1)  # (B,)
    total = weighted.sum(dim=1).masked_fill(unscored, torch.nan)  # (B,)
    advantages = (total - total.nanmean()) / (nan_std(total, 0) + _EPSILON)
    equal = equal_in_group(total, num_generations, weighted.abs().sum(dim=1))
    return advantages.nan_to_num(nan=0.0).masked_fill(equal, 0.0)
