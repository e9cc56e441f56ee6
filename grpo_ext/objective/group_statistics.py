"""Statistics within groups, ignoring NaN, which marks completions that were not scored."""

import torch

# Rewards of a group count as equal if they differ by at most this many units in the last place: the
# rounding error of a sum of up to 64 terms.
_ROUNDING_UNITS = 64


def equal_in_group(
    rewards: torch.Tensor, num_generations: int, magnitudes: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (B,), bool: whether the rewards of each completion's group are equal up to rounding.

    Args:
        rewards: (B,), for whole groups; NaN is ignored, and a group of only NaN counts as equal.
        num_generations: completions per prompt.
        magnitudes: (B,), for each reward the sum of the absolute values of its terms, which bounds
            its rounding error; `None`: the absolute values of the rewards.
    """
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    missing = grouped.isnan()
    if magnitudes is None:
        magnitudes = rewards
    sizes = magnitudes.abs().view_as(grouped)  # (groups, G)
    largest = sizes.masked_fill(missing, 0.0).amax(1)  # (groups,)
    highest = grouped.masked_fill(missing, -torch.inf).amax(1)
    lowest = grouped.masked_fill(missing, torch.inf).amin(1)
    rounding = _ROUNDING_UNITS * torch.finfo(rewards.dtype).eps * largest
    return (highest - lowest <= rounding).repeat_interleave(num_generations)


def has_signal(advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Return (B,), bool: whether any advantage in each completion's group is nonzero.

    Args:
        advantages: (B,), or (B, K) for turns, since episodes with equal rewards still differ if
            they earned them in different turns.
        num_generations: completions per prompt.
    """
    by_group = advantages.reshape(len(advantages) // num_generations, -1)
    return (by_group != 0).any(1).repeat_interleave(num_generations)


def nan_std(values: torch.Tensor, dim: int, estimator: str = "sample") -> torch.Tensor:
    """Return the standard deviation along `dim`, ignoring NaN entries.

    Args:
        values: any shape; `dim` is kept with size 1.
        dim: the dimension to reduce.
        estimator: "sample" (n - 1) or "population" (n).

    Returns:
        The standard deviation; NaN where it is undefined.
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
        rewards: (B,), the weighted sums, for whole groups; NaN for a completion that was not
            scored.
        num_generations: completions per prompt.
        std_estimator: "sample" (n - 1) or "population" (n).
    """
    grouped = rewards.view(-1, num_generations)  # (N, G)
    too_few = (~grouped.isnan()).sum(dim=1) < 2  # (N,)
    return nan_std(grouped, 1, std_estimator).squeeze(1).masked_fill(too_few, torch.nan)
