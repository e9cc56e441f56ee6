"""Compute the gain of each turn of an episode, in environments with `credit: turn`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_ext.common.columns import has_task
from grpo_ext.environments.episode import Episode
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.reward import Reward

if TYPE_CHECKING:
    from grpo_ext.trainer.port import Trainer


@dataclass(frozen=True)
class StateReward:
    """The settings of an `environment` reward, which scores an entry of the environment's state."""

    key: str  #: the name of the entry
    weight: float
    tasks: tuple[str, ...] | None  #: the tasks whose rows it scores; `None` for all


class TurnCredit:
    """Computes the gain of each turn: the part of the episode's reward that the turn earned.

    Each `environment` reward scores one entry of the environment's state. The gain of a turn is the
    weighted sum of the changes in these entries.
    """

    def __init__(self, trainer: Trainer):
        #: whether any environment has `credit: turn`
        self.applies = False
        for environment in environments_of(trainer.args).values():
            if isinstance(environment, Mapping) and environment.get("credit") == "turn":
                self.applies = True
        self.rewards: list[StateReward] = []
        weights = trainer.reward_weights.tolist()
        for guard, weight in zip(trainer.reward_funcs, weights, strict=True):
            reward = unguarded(guard)
            if isinstance(reward, Reward) and reward.registration.name == "environment":
                key = reward.options["key"]
                self.rewards.append(StateReward(key, weight, reward.tasks))

    def weights(self, episode: Episode) -> dict[str, float] | None:
        """Return, by name, the weights of the state entries that rewards score.

        Rewards that do not score the episode's task are left out. With `credit: episode`, where all
        turns share one advantage, the result is `None`.
        """
        if episode.rules.credit == "episode":
            return None
        weights: dict[str, float] = {}
        for reward in self.rewards:
            if has_task(episode.row, reward.tasks):
                weights[reward.key] = weights.get(reward.key, 0.0) + reward.weight
        return weights

    def gains(self, episode: Episode) -> list[float]:
        """Return the gain of each turn; with `credit: episode`, all gains are 0."""
        weights = self.weights(episode)
        if weights is None:
            return [0.0] * episode.turns
        return episode.gains(weights)
