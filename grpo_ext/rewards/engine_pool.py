"""A pool for rows that need the engine; what can be judged without it is judged in the trainer, in microseconds.

So no worker starts before the first formula comes, and none where all answers are plain numbers or texts.
"""

import pickle
from collections.abc import Callable
from contextlib import suppress

from grpo_ext.rewards.engine import without_engine
from grpo_ext.rewards.pool import RewardPool, Row
from grpo_ext.rewards.reward import Reward

_asking: set[Callable] = set()


def asks_engine(function: Callable) -> Callable:
    """Decorator for a reward function that takes little time, but for what it asks the engine."""
    _asking.add(function)
    return function


class EnginePool(RewardPool):
    """`RewardPool`, but of rewards that `asks_engine` marks only the rows that need the engine go to workers."""

    def _judged(self, reward: Reward, row: Row) -> Row:
        if isinstance(row, bytes) and reward.registration.function in _asking:
            with suppress(Exception), without_engine():  # where anything is wrong with it, a worker tells what
                [score] = reward(**pickle.loads(row)[2])
                return score, None
        return row
