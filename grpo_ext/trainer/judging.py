"""Rewards as the trainer runs them: found by name, behind a guard, failing on all ranks together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor

from grpo_ext.rewards.guard import AsyncGuard, Guard, RewardFailure, guard_rewards
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.sources import find
from grpo_ext.seams import trl as seam
from grpo_ext.step.records import Scored

Row = dict[str, Any]


def rewards_for(reward_funcs: Any, args: Any) -> list[Any]:
    """The reward functions as a trainer is given them, each behind a guard whose failure waits for all ranks.

    Args:
        reward_funcs: as `GRPOExtTrainer` takes them. A name means what it means in a recipe; reward models stay as they are.
        args: a `GRPOExtConfig`.

    Raises:
        ValueError: for a name that nothing has.
    """
    given = reward_funcs if isinstance(reward_funcs, list | tuple) else [] if reward_funcs is None else [reward_funcs]
    guarded = guard_rewards(
        [find(f, {}) if isinstance(f, str) else f for f in given],
        on_error=args.reward_on_error,
        max_failure_rate=args.reward_max_failure_rate,
        timeout=args.reward_timeout,
        pool=RewardPool(args.reward_workers, timeout=args.reward_timeout) if args.reward_workers else None,
    )
    return [_deferring(reward) if isinstance(reward, Guard) else reward for reward in guarded]


def describe_rewards(reward_funcs: list[Any], names: list[str], weights: list[float]) -> list[dict[str, Any]]:
    """What a run tells of its rewards: name, weight, and of a registered one what it is and its options."""
    found = []
    for reward, name, weight in zip(reward_funcs, names, weights, strict=True):
        inner = reward.guard.reward if isinstance(reward, Deferring) else None
        known = {"reward": inner.registration.name, "options": inner.options} if isinstance(inner, Reward) else {}
        found.append({"name": name, "weight": weight, **known})
    return found


@dataclass(frozen=True)
class Judged:
    """A generation with its rewards. The lists and the table are this rank's; rewards and advantages are of all ranks.

    `given` are the rewards as they were given, NaN where one did not score a completion; in `rewards` such gaps are filled.
    """

    rows: list[Row]
    prompts: list[Any]
    completions: list[Any]
    truncated: list[bool]
    table: Scored
    given: Tensor  # (B of all ranks, R)
    rewards: Tensor  # (B of all ranks, R)
    advantages: Tensor  # (B of all ranks,)
    lengths: list[int]


class Judge:
    """The rewards of a trainer.

    Args:
        trainer: whose reward functions these are.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.failed: dict[str, int] = {}  # rows that a reward failed on since the start

    def begin(self, rows: list[Row], prompts: list[Any], completions: list[Any], ids: list[list[int]]) -> None:
        """Let rewards in worker processes begin, while the completions are scored under the old policy and the reference."""
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        for reward in self.trainer.reward_funcs:
            if isinstance(reward, Deferring):
                reward.guard.begin(prompts=prompts, completions=completions, completion_ids=ids, **columns)

    def rewards(self, rows: list[Row], prompts: list[Any], completions: list[Any], ids: list[list[int]]) -> Tensor:
        """(B of all ranks, R), NaN where a reward did not score a completion.

        Raises:
            RewardFailure: on all ranks, if a reward failed too often.
        """
        found = seam.calculate_rewards(self.trainer, rows, prompts, completions, ids)
        self.settle()
        return found

    def settle(self) -> None:
        """Raise on every rank where a reward failed too often on any, and count the rows that failed."""
        self.failed = settle_failures(self.trainer.reward_funcs, gather_object)


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

    async def __call__(self, *, completions: list[Any], **given: Any) -> list[float | None]:  # type: ignore[override]  # TRL awaits it
        guard: Any = self.guard
        try:
            return await guard(completions=completions, **given)
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
