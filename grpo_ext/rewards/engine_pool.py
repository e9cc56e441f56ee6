"""A pool for rows that need the engine; what can be judged without it is judged in the trainer, in microseconds.

So no worker starts before the first formula comes, and none where all answers are plain numbers or texts.
"""

from collections.abc import Callable
from typing import Any

from grpo_ext.rewards.engine import without_engine
from grpo_ext.rewards.guard import one_row
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reward import Reward, Score

Given = dict[str, Any]
_asking: set[Callable] = set()


def asks_engine(function: Callable) -> Callable:
    """Decorator for a reward function that takes little time, but for what it asks the engine."""
    _asking.add(function)
    return function


class EnginePool(RewardPool):
    """`RewardPool`, but of rewards that `asks_engine` marks only the rows that need the engine go to workers."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._early: dict[Reward, tuple[Any, Any]] = {}  # what `begin` was given, and what came of it

    def begin(self, reward: Reward, given: Given) -> None:
        scores, rest = judged(reward, given)
        self._early[reward] = given, (list(scores), rest)
        if rest:
            super().begin(reward, rows(given, rest))

    def score(self, reward: Reward, given: Given) -> tuple[list[Score], dict[int, str]]:
        before, early = self._early.pop(reward, ({}, None))
        same = all(before.get(name) == given.get(name) for name in ("completions", "completion_ids", *reward.columns))
        scores, rest = early if early and same else judged(reward, given)
        if not rest:
            return scores, {}
        found, errors = super().score(reward, rows(given, rest))
        for row, score in zip(rest, found, strict=True):
            scores[row] = score
        return scores, {rest[row]: error for row, error in errors.items()}


def judged(reward: Reward, given: Given) -> tuple[list[Score], list[int]]:
    """Scores, and the rows that have none yet."""
    count = len(given["completions"])
    scores: list[Score] = [None] * count
    if reward.registration.function not in _asking:
        return scores, list(range(count))
    rest: list[int] = []
    with without_engine():
        try:
            return reward(**given), rest
        except Exception:  # of one of the rows
            for row in range(count):
                try:
                    [scores[row]] = reward(**one_row(given, row, count))
                except Exception:  # a worker tells what is wrong with it
                    rest.append(row)
    return scores, rest


def rows(given: Given, wanted: list[int]) -> Given:
    """The arguments for some of the completions."""
    count = len(given["completions"])
    return {
        name: [value[row] for row in wanted] if isinstance(value, list | tuple) and len(value) == count else value
        for name, value in given.items()
    }
