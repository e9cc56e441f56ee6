"""Rewards as the trainer runs them: found by name, behind a guard, failing on all ranks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor

from grpo_ext.rewards.guard import Guard, RewardFailure, guard_rewards
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.sources import checked_weight, find, metric_name
from grpo_ext.seams import trl as seam
from grpo_ext.step.records import Scored

Row = dict[str, Any]


def rewards_for(reward_funcs: Any, args: Any) -> list[Any]:
    """The reward functions as a trainer is given them, by name or not, behind guards with its options; models as they are.

    Raises:
        ValueError: for an unknown name, and for a weight that float32 cannot hold.
    """
    reward_funcs = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    found = [find(reward, {}) if isinstance(reward, str) else reward for reward in reward_funcs if reward is not None]
    for reward, weight in zip(found, args.reward_weights or (), strict=False):  # TRL counts them
        checked_weight(metric_name(reward), weight)
    return guard_rewards(
        found,
        on_error=args.reward_on_error,
        max_failure_rate=args.reward_max_failure_rate,
        timeout=args.reward_timeout,
        workers=args.reward_workers,
        deferred=True,
    )


def describe_rewards(reward_funcs: list[Any], names: list[str], weights: list[float]) -> list[dict[str, Any]]:
    """What a run tells of its rewards: name, weight, and of a registered one what it is and its options."""
    found = []
    for reward, name, weight in zip(reward_funcs, names, weights, strict=True):
        inner = reward.reward if isinstance(reward, Guard) else None
        known = {"reward": inner.registration.name, "options": inner.options} if isinstance(inner, Reward) else {}
        found.append({"name": name, "weight": weight, **known})
    return found


@dataclass(frozen=True)
class Judged:
    """A generation with its rewards. The lists and the table are this rank's; rewards and advantages are of all ranks.

    `given` are the rewards as they were given, NaN where one did not score a completion; in `rewards` such gaps are filled.
    `episodes` are what `samples.jsonl` has of each episode; empty where a completion is one turn.
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
    episodes: list[Row] = field(default_factory=list)


class Judge:
    """The rewards of a trainer.

    Args:
        trainer: whose reward functions these are.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.failed: dict[str, int] = {}  # rows that a reward failed on since the start of the run, on all ranks
        self._counted: Counter[str] = Counter()  # of them by this process's guards, at the last look

    def begin(self, rows: list[Row], prompts: list[Any], completions: list[Any], ids: list[list[int]]) -> None:
        """Let rewards in worker processes begin, while the completions are scored under the old policy and the reference."""
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        for reward in self.trainer.reward_funcs:
            if isinstance(reward, Guard):
                reward.begin(prompts=prompts, completions=completions, completion_ids=ids, **columns)

    def rewards(
        self,
        rows: list[Row],
        prompts: list[Any],
        completions: list[Any],
        ids: list[list[int]],
        environments: Sequence[Any] = (),
    ) -> Tensor:
        """(B of all ranks, R), NaN where a reward did not score a completion; `environments` are instances as TRL has them.

        Raises:
            RewardFailure: on all ranks, if a reward failed too often.
        """
        found = seam.calculate_rewards(self.trainer, rows, prompts, completions, ids, list(environments))
        self.settle()
        return found

    def settle(self, gather: Callable[[list[Any]], list[Any]] = gather_object) -> None:
        """Count the rows that failed on all ranks, whose lists `gather` collects.

        Raises:
            RewardFailure: on all ranks, where a reward failed too often on any of them, or on all rows of all.
        """
        guards = [reward for reward in self.trainer.reward_funcs if isinstance(reward, Guard)]
        failed: Counter[str] = Counter()
        lost: dict[str, list[set[int]]] = {}
        errors: dict[str, str] = {}
        for name, count, failure, prompts, error in gather(
            [(guard.name, guard.failed, str(guard.failure or ""), guard.lost, guard.last_error) for guard in guards]
        ):
            if failure:
                raise RewardFailure(failure)
            failed[name] += count
            lost.setdefault(name, []).append(prompts)
            errors.setdefault(name, error)
        for name, of_ranks in lost.items():
            if all(of_ranks) and len(set().union(*of_ranks)) > 1:  # one prompt alone may be a bad row of the data
                raise RewardFailure(
                    f"Reward {name!r} failed on every completion. Mend it, try it with `grpo-ext rewards score`, and resume; "
                    f"`reward_max_failure_rate: 1` goes on without it. The last failure: {errors[name]}"
                )
        for name, count in failed.items():
            if count:
                self.failed[name] = self.failed.get(name, 0) + count - self._counted[name]
        self._counted = failed

    def state_dict(self) -> dict[str, Any]:
        return {"failed": dict(self.failed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failed = dict(state["failed"])
