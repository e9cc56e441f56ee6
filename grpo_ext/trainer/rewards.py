"""Rewards as the trainer runs them: found by name, behind a guard, failing on all ranks together, gaps filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo_ext.rewards import build
from grpo_ext.rewards.guard import AsyncGuard, Guard, RewardFailure, guard_rewards
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.registry import names
from grpo_ext.rewards.reward import Reward


def named_rewards(reward_funcs: Any) -> list[Any]:
    """The reward functions as a list, with names of registered rewards replaced by what they name."""
    if reward_funcs is None:
        return []
    reward_funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    known = set(names())
    return [build(f) if isinstance(f, str) and f in known else f for f in reward_funcs]


def guarded_rewards(reward_funcs: Any, **options: Any) -> list[Any]:
    """The reward functions, each behind a guard whose failure waits for all ranks; reward models as they are.

    Args:
        reward_funcs: as `GRPOExtTrainer` takes them.
        **options: of `Guard`.
    """
    guarded = guard_rewards(named_rewards(reward_funcs), **options)
    return [_deferring(reward) if isinstance(reward, Guard) else reward for reward in guarded]


def describe_rewards(reward_funcs: list[Any], names: list[str], weights: list[float]) -> list[dict[str, Any]]:
    """What a run tells of its rewards: name, weight, and of a registered one what it is and its options."""
    found = []
    for reward, name, weight in zip(reward_funcs, names, weights, strict=True):
        inner = reward.guard.reward if isinstance(reward, Deferring) else None
        known = {"reward": inner.registration.name, "options": inner.options} if isinstance(inner, Reward) else {}
        found.append({"name": name, "weight": weight, **known})
    return found


def reward_pool(workers: int, timeout: float) -> RewardPool | None:
    """The worker processes for CPU-heavy rewards, or `None` where there are to be none. They start when first needed."""
    return RewardPool(workers, timeout=timeout) if workers else None


class EarlyRewards:
    """Mixin before `GRPOTrainer`: rewards in worker processes begin as soon as the completions are there.

    They work while the trainer scores the completions under the old policy and the reference. TRL asks for them after that,
    with rows that hold the same, and gets what is done by then.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._rows_to_score: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        self._rows_to_score = inputs
        return super()._generate_and_score_completions(inputs)

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        rows, completion_ids, completions = self._rows_to_score, generated[1], generated[3]
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        for reward in self.reward_funcs:
            if isinstance(reward, Deferring):
                given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
                reward.guard.begin(**given)
        return generated


class Deferring:
    """A guard whose `RewardFailure` is kept in `failure` instead of raised, so that no rank leaves a collective call alone.

    The trainer raises it on every rank once all have scored their rows.
    """

    def __init__(self, guard: Guard):
        self.guard = guard
        self.__name__ = guard.name
        self.columns = guard.columns
        self.failure: RewardFailure | None = None

    def __call__(self, *, completions: list[Any], **given: Any) -> list[float | None]:
        try:
            return self.guard(completions=completions, **given)
        except RewardFailure as failure:
            return self._keep(failure, completions)

    def _keep(self, failure: RewardFailure, completions: list[Any]) -> list[float | None]:
        self.failure = failure
        return [None] * len(completions)


class AsyncDeferring(Deferring):
    """`Deferring` for a reward that TRL awaits."""

    async def __call__(self, *, completions: list[Any], **given: Any) -> list[float | None]:
        try:
            return await self.guard(completions=completions, **given)
        except RewardFailure as failure:
            return self._keep(failure, completions)


def _deferring(guard: Guard) -> Deferring:
    return AsyncDeferring(guard) if isinstance(guard, AsyncGuard) else Deferring(guard)


def settle_failures(reward_funcs: list[Any], gather: Callable[[list[Any]], list[Any]]) -> dict[str, int]:
    """Raise on every rank where a reward failed too often on any; else count the failed rows of all ranks.

    Args:
        reward_funcs: the trainer's.
        gather: collects a list over all ranks.

    Returns:
        Failed rows since the start, by reward, for rewards that failed at all.

    Raises:
        RewardFailure: with the message of the first rank that has one.
    """
    guarded = [reward for reward in reward_funcs if isinstance(reward, Deferring)]
    mine = [(reward.__name__, reward.guard.failed, str(reward.failure or "")) for reward in guarded]
    failed: dict[str, int] = {}
    for name, count, failure in gather(mine):
        if failure:
            raise RewardFailure(failure)
        failed[name] = failed.get(name, 0) + count
    return {name: count for name, count in failed.items() if count}


def fill_unscored(rewards_per_func: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Give a row that one reward did not score (NaN) the mean of its group on that reward.

    TRL sums what is not NaN, which counts a missing reward as 0 and so punishes the row beside its group. With the group's
    mean the row is judged on the rewards that answered. Where none of the group was scored the reward says nothing: 0 for
    all of them. A row that no reward scored stays NaN; TRL leaves it out.

    Args:
        rewards_per_func: (B, R), B whole groups of `num_generations` rows.
        num_generations: completions a prompt.

    Returns:
        (B, R); the same tensor where nothing is missing.
    """
    missing = rewards_per_func.isnan()  # (B, R)
    if not missing.any():
        return rewards_per_func
    grouped = rewards_per_func.view(-1, num_generations, rewards_per_func.size(1))  # (B / G, G, R)
    means = grouped.nanmean(dim=1, keepdim=True).nan_to_num(nan=0.0).expand_as(grouped).reshape_as(rewards_per_func)
    filled = torch.where(missing, means, rewards_per_func)
    return torch.where(missing.all(dim=1, keepdim=True), rewards_per_func, filled)
