"""Advantages: how much better a completion is than its group.

`@register_advantages` adds a value of `scale_rewards`: an estimator that computes advantages from
the weighted sums of the rewards. `@register_joint_advantages` adds a value of
`multi_objective_aggregation`: an estimator that receives each reward separately. Both kinds are
called with the rewards of whole groups.

GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2) divides by the std of the group, Dr. GRPO
(arXiv 2503.20783) does not divide, and `batch` divides by the std over all groups. DeepSeekMath
does not say which std it uses; the preset `grpo_paper` uses the population std. TRL uses the
sample std (n - 1), which is larger by a factor of sqrt(n / (n - 1)): with two completions the
advantages are 0.71 instead of 1.

Dividing by a small std would turn rounding errors into advantages. Rewards therefore stay in
float64 up to this point, and with the estimators of this module, a group of equal rewards (see
`equal_in_group`) gets advantages of exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes need only the names of the estimators, without importing torch
    from torch import Tensor

_EPSILON = 1e-4

# Rewards of a group count as equal if they differ by at most this many units in the last place: the
# rounding error of a sum of up to 64 terms.
_ROUNDING_UNITS = 64


def equal_in_group(
    rewards: Tensor,
    num_generations: int,
    magnitudes: Tensor | None = None,
) -> Tensor:
    """Return a bool mask (B,), true in groups whose rewards are equal up to rounding.

    Args:
        rewards: (B,), the rewards of whole groups; completions of a group are adjacent. NaN is
            ignored, and a group of only NaN counts as equal.
        num_generations: completions per prompt.
        magnitudes: (B,), for each reward, the sum of the absolute values of its terms, which bounds
            the reward's rounding error; `None` uses the absolute value of the reward itself.
    """
    import torch

    if magnitudes is None:
        magnitudes = rewards
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    missing = grouped.isnan()  # (groups, G)
    sizes = magnitudes.abs().view_as(grouped)  # (groups, G)
    largest = sizes.masked_fill(missing, 0.0).amax(1)  # (groups,)
    highest = grouped.masked_fill(missing, -math.inf).amax(1)  # (groups,)
    lowest = grouped.masked_fill(missing, math.inf).amin(1)  # (groups,)
    unit = torch.finfo(rewards.dtype).eps
    rounding = _ROUNDING_UNITS * unit * largest  # (groups,)
    is_equal = highest - lowest <= rounding  # (groups,)
    return is_equal.repeat_interleave(num_generations)


def has_signal(advantages: Tensor, num_generations: int) -> Tensor:
    """Return a bool mask (B,), true in groups with any nonzero advantage.

    Args:
        advantages: (B,), or (B, K) for the advantages of turns; completions of a group are
            adjacent. Episodes with equal rewards can have nonzero advantages if they earned the
            rewards in different turns.
        num_generations: completions per prompt.
    """
    num_groups = len(advantages) // num_generations
    by_group = advantages.reshape(num_groups, -1)  # (groups, G) or (groups, G * K)
    any_nonzero = (by_group != 0).any(1)  # (groups,)
    return any_nonzero.repeat_interleave(num_generations)


def nan_std(values: Tensor, dim: int, estimator: str = "sample") -> Tensor:
    """Return the standard deviation along `dim`, ignoring NaN entries.

    Args:
        values: a tensor of any shape.
        dim: the dimension to reduce.
        estimator: "sample" (n - 1) or "population" (n).

    Returns:
        The standard deviation; `dim` is kept, with size 1. With "sample", it is NaN where only one
        entry is not NaN. Where all entries are NaN, the value has no meaning.
    """
    mean = values.nanmean(dim, keepdim=True)
    deviations = values - mean
    sum_of_squares = (deviations**2).nansum(dim, keepdim=True)
    divisor = (~values.isnan()).sum(dim, keepdim=True)
    if estimator == "sample":
        divisor = divisor - 1
    variance = sum_of_squares / divisor
    return variance.sqrt()


def group_stds(
    rewards: Tensor,
    num_generations: int,
    std_estimator: str = "sample",
) -> Tensor:
    """Return the std of each group's rewards, (N,); NaN for groups with fewer than two scores.

    Args:
        rewards: (B,), the weighted sums of the rewards for N whole groups; NaN for a completion
            that was not scored.
        num_generations: completions per prompt.
        std_estimator: "sample" (n - 1) or "population" (n).
    """
    grouped = rewards.view(-1, num_generations)  # (N, G)
    num_scored = (~grouped.isnan()).sum(dim=1)  # (N,)
    stds = nan_std(grouped, 1, std_estimator).squeeze(1)  # (N,)
    return stds.masked_fill(num_scored < 2, math.nan)


#: `estimate(rewards, std_estimator)`: maps the rewards (N, G) of N groups and the value of
#: `std_estimator` to advantages (N, G)
Estimate = Callable[["Tensor", str], "Tensor"]
#: `estimate(rewards, weights)`: maps rewards (N, G, R) and their weights (R,) to advantages (N, G)
JointEstimate = Callable[["Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class AdvantageEstimator:
    """A registered estimator that computes advantages from weighted sums of rewards."""

    name: str  #: the value of `scale_rewards`
    estimate: Estimate
    #: whether a group's advantages depend only on its own rewards. `tie_break_reward` and
    #: `credit: turn` require `True`; if `False`, advantages are recomputed when groups are left out
    within_group: bool = True
    zero_if_equal: bool = True  #: whether all advantages in a group of equal rewards are set to 0


_ESTIMATORS: dict[str, AdvantageEstimator] = {}
_JOINT_ESTIMATORS: dict[str, JointEstimate] = {}
SUM_THEN_NORMALIZE = "sum_then_normalize"  # the weighted sum goes to the estimator of scale_rewards
# Estimators that TRL has under the same names. TRL's own ones apply where TRL itself generates or
# computes the loss.
TRL_ADVANTAGES = ("group", "batch", "none")
TRL_JOINT_ADVANTAGES = (SUM_THEN_NORMALIZE, "normalize_then_sum")


def register_advantages(
    name: str,
    *,
    within_group: bool = True,
    zero_if_equal: bool = True,
) -> Callable[[Estimate], Estimate]:
    """Decorator that registers an advantage estimator as a value of `scale_rewards`.

    The decorated function is called with `(rewards, std_estimator)` and returns the advantages, of
    shape (N, G). `rewards`, of the same shape, holds the weighted sums of the rewards for N
    groups, in float64 (float32 on an Apple GPU). NaN marks a completion that was not scored, or
    padding in a group smaller than G. NaN advantages become 0. To use the estimator in a recipe,
    define it in a file listed in `reward_plugins`.

    Args:
        name: the new value of `scale_rewards`.
        within_group: whether a group's advantages depend only on its own rewards; required by
            `tie_break_reward` and `credit: turn`.
        zero_if_equal: whether all advantages in a group of equal rewards are set to 0. Use `False`
            for a baseline other than the group's mean.

    Raises:
        ValueError: if the name is taken.
    """
    if name in _ESTIMATORS:
        raise ValueError(f"scale_rewards {name!r} is already registered: choose another name.")

    def register(estimate: Estimate) -> Estimate:
        _ESTIMATORS[name] = AdvantageEstimator(
            name=name,
            estimate=estimate,
            within_group=within_group,
            zero_if_equal=zero_if_equal,
        )
        return estimate

    return register


def register_joint_advantages(name: str) -> Callable[[JointEstimate], JointEstimate]:
    """Decorator that registers a joint estimator as a value of `multi_objective_aggregation`.

    The decorated function is called with `(rewards, weights)` and returns the advantages, of shape
    (N, G). `rewards`, of shape (N, G, R), holds the R rewards of N groups in float64 (float32 on an
    Apple GPU), and `weights`, of shape (R,), their weights. NaN marks a completion that a reward
    did not score, or padding in a group smaller than G. NaN advantages become 0. To use the
    estimator in a recipe, define it in a file listed in `reward_plugins`.

    Args:
        name: the new value of `multi_objective_aggregation`.

    Raises:
        ValueError: if the name is taken.
    """
    if name in joint_advantage_names():
        raise ValueError(
            f"multi_objective_aggregation {name!r} is already registered: choose another name."
        )

    def register(estimate: JointEstimate) -> JointEstimate:
        _JOINT_ESTIMATORS[name] = estimate
        return estimate

    return register


def get_advantages(name: str) -> AdvantageEstimator:
    """Return the estimator registered as `name`; raise `ValueError` if there is none."""
    if name not in _ESTIMATORS:
        raise ValueError(
            f"scale_rewards: unknown estimator {name!r}. Choose one of {', '.join(_ESTIMATORS)}, "
            "or register it with @register_advantages."
        )
    return _ESTIMATORS[name]


def advantage_names() -> tuple[str, ...]:
    """Return all values of `scale_rewards`: the names of the registered estimators."""
    return tuple(_ESTIMATORS)


def joint_advantage_names() -> tuple[str, ...]:
    """Return all values of `multi_objective_aggregation`, including "sum_then_normalize"."""
    return (SUM_THEN_NORMALIZE, *_JOINT_ESTIMATORS)


@register_advantages("group")
def by_group_std(rewards: Tensor, std_estimator: str) -> Tensor:
    """Return A_i = (r_i - mean) / (std + 1e-4), (N, G), with the mean and std of the group.

    This is the advantage of GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
    """
    std = nan_std(rewards, 1, std_estimator)  # (N, 1)
    return unscaled(rewards, std_estimator) / (std + _EPSILON)


@register_advantages("batch", within_group=False)
def by_batch_std(rewards: Tensor, std_estimator: str) -> Tensor:
    """Return A_i = (r_i - mean) / (std + 1e-4), (N, G), with the std over all groups.

    The mean is that of the group, as in Lite PPO ("Tricks or Traps", arXiv 2508.08221).
    """
    std = nan_std(rewards.view(1, -1), 1, std_estimator)  # (1, 1)
    return unscaled(rewards, std_estimator) / (std + _EPSILON)


@register_advantages("none")
def unscaled(rewards: Tensor, std_estimator: str) -> Tensor:
    """Return A_i = r_i - mean of the group, (N, G), as in Dr. GRPO (arXiv 2503.20783)."""
    return rewards - rewards.nanmean(dim=1, keepdim=True)


def group_advantages(
    rewards: Tensor,
    num_generations: int,
    scale_rewards: str = "group",
    std_estimator: str = "sample",
    magnitudes: Tensor | None = None,
) -> Tensor:
    """Compute the advantages for whole groups, (B,), with the estimator named `scale_rewards`.

    A NaN reward marks a completion that was not scored. With the estimators of this module, such a
    completion has advantage 0 and does not affect the mean and std. In a group of equal rewards,
    all advantages are exactly 0, unless the estimator was registered with `zero_if_equal=False`.

    Args:
        rewards: (B,), the weighted sums of the rewards; completions of a group are adjacent.
        num_generations: completions per prompt.
        scale_rewards: the name of an estimator.
        std_estimator: "sample" (n - 1) or "population" (n).
        magnitudes: (B,), for each reward, the sum of the absolute values of its terms, from which
            the rounding tolerance for equal rewards follows; `None` uses the absolute rewards.

    Raises:
        ValueError: if no estimator has that name, or if the shape of its result is not that of its
            input.
    """
    estimator = get_advantages(scale_rewards)
    grouped = rewards.view(-1, num_generations)  # (groups, G)
    advantages = estimator.estimate(grouped, std_estimator)
    if advantages.shape != grouped.shape:
        raise ValueError(
            f"scale_rewards: {scale_rewards} returned advantages of shape "
            f"{tuple(advantages.shape)} for rewards of shape {tuple(grouped.shape)}: return one "
            "advantage for each reward."
        )
    advantages = advantages.nan_to_num(nan=0.0).view(-1)
    if estimator.zero_if_equal:
        equal = equal_in_group(rewards, num_generations, magnitudes)
        advantages = advantages.masked_fill(equal, 0.0)
    return advantages


def turn_advantages(
    rewards: Tensor,
    gains: Tensor,
    turns: Tensor,
    num_generations: int,
    scale_rewards: str = "group",
    std_estimator: str = "sample",
) -> Tensor:
    """Return the advantage of each turn: its reward-to-go, compared within the group.

        G_ik = r_i - sum over j < k of g_ij,    A_ik = (G_ik - mean_k) / (std_k + 1e-4)

    As in process supervision (DeepSeekMath, section 4.1.3), a turn is credited with the rewards
    from that turn on. Here, these rewards are summed first; the sums for turn k are then normalized
    over the episodes of the group that have a turn k. If all episodes have a single turn, the
    advantages are those of `group_advantages`. The formula for A holds for `scale_rewards: group`.

    Args:
        rewards: (B,), the weighted sums of the rewards for whole episodes; NaN marks an episode
            without a score. Episodes of a group are adjacent.
        gains: (B, K), the part of the reward that each turn earned; the remainder counts as earned
            by the last turn.
        turns: (B,), the number of turns of each episode, at most K.
        num_generations: completions per prompt.
        scale_rewards: the name of an estimator with `within_group=True`.
        std_estimator: "sample" (n - 1) or "population" (n).

    Returns:
        The advantages (B, K); 0 for turns that an episode does not have, and for episodes without a
        score.

    Raises:
        ValueError: if no estimator has that name, or if the shape of its result is not that of its
            input.
    """
    import torch

    max_turns = gains.size(1)  # K

    def by_turn(table: Tensor) -> Tensor:
        """Flatten `table` (B, K) so that a group's values for the same turn are adjacent."""
        grouped = table.view(-1, num_generations, max_turns)  # (groups, G, K)
        return grouped.transpose(1, 2).reshape(-1)

    earlier_gains = gains.cumsum(1) - gains  # (B, K)
    to_go = rewards.unsqueeze(1) - earlier_gains  # (B, K)
    numbers = torch.arange(max_turns, device=gains.device)  # (K,)
    absent = numbers >= turns.unsqueeze(1)  # (B, K)
    # If large gains leave a small remainder, it carries their rounding errors.
    magnitudes = rewards.abs().unsqueeze(1) + gains.abs().cumsum(1)  # (B, K)
    advantages = group_advantages(
        by_turn(to_go.masked_fill(absent, math.nan)),
        num_generations,
        scale_rewards,
        std_estimator,
        by_turn(magnitudes),
    )
    grouped = advantages.view(-1, max_turns, num_generations)  # (groups, K, G)
    return grouped.transpose(1, 2).reshape(len(rewards), -1)


def joint_advantages(
    rewards: Tensor,
    weights: Tensor,
    num_generations: int,
    name: str,
) -> Tensor:
    """Compute the advantages for whole groups, (B,), with the joint estimator named `name`.

    Where the estimator returns NaN, the advantage is 0.

    Args:
        rewards: (B, R); completions of a group are adjacent. NaN where a reward did not score a
            completion.
        weights: (R,), the weights of the rewards.
        num_generations: completions per prompt.
        name: a value of `multi_objective_aggregation` other than "sum_then_normalize".

    Raises:
        ValueError: if no estimator has that name, or if it does not return one advantage for each
            completion.
    """
    if name not in _JOINT_ESTIMATORS:
        raise ValueError(
            f"multi_objective_aggregation: unknown estimator {name!r}. Choose one of "
            f"{', '.join(joint_advantage_names())}, or register it with "
            "@register_joint_advantages."
        )
    grouped = rewards.view(-1, num_generations, rewards.size(1))  # (groups, G, R)
    advantages = _JOINT_ESTIMATORS[name](grouped, weights)
    if advantages.shape != grouped.shape[:2]:
        raise ValueError(
            f"multi_objective_aggregation: {name} returned advantages of shape "
            f"{tuple(advantages.shape)} for rewards of shape {tuple(grouped.shape)}: return one "
            "advantage for each completion."
        )
    return advantages.nan_to_num(nan=0.0).view(-1)


@register_joint_advantages("normalize_then_sum")
def normalized_then_summed(rewards: Tensor, weights: Tensor) -> Tensor:
    """Return the advantages that GDPO (arXiv 2601.05242) assigns, (N, G).

    As in TRL, each reward is centered and divided by its std within the group. The weighted sum is
    then centered and divided by its std over the batch. Both are sample stds (n - 1). In a group of
    equal weighted sums, all advantages are exactly 0; in any other group, a completion that no
    reward scored gets NaN.

    Args:
        rewards: (N, G, R); NaN where a reward did not score a completion.
        weights: (R,), the weights of the rewards.
    """
    import torch

    num_generations = rewards.size(1)  # G
    by_completion = rewards.flatten(0, 1)  # (B, R)
    normalized = []
    magnitudes = []
    for reward in by_completion.unbind(1):  # (B,)
        normalized.append(group_advantages(reward, num_generations))
        grouped = reward.view(-1, num_generations)  # (groups, G)
        # A reward's rounding error is divided by the std, too; equal rewards become exact zeros.
        sizes = grouped.abs() / (nan_std(grouped, 1) + _EPSILON)  # (groups, G)
        equal = equal_in_group(reward, num_generations)  # (B,)
        magnitudes.append(sizes.view(-1).masked_fill(equal, 0.0))
    weighted = torch.stack(normalized, dim=1) * weights  # (B, R)
    unscored = by_completion.isnan().all(dim=1)  # (B,)
    total = weighted.sum(dim=1).masked_fill(unscored, math.nan)  # (B,)
    std = nan_std(total, 0)  # (1,)
    advantages = (total - total.nanmean()) / (std + _EPSILON)  # (B,)
    magnitude = (torch.stack(magnitudes, dim=1) * weights.abs()).nansum(dim=1)  # (B,)
    equal = equal_in_group(total, num_generations, magnitude)  # (B,)
    return advantages.masked_fill(equal, 0.0).view(-1, num_generations)
