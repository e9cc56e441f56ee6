"""Base class for other packages' environments with `reset` and `step`: Gymnasium's and OpenEnv's.

A subclass converts the text of a turn to an action, and an observation to text. The score of an
episode is the sum of its rewards.
"""

from __future__ import annotations

import inspect
from typing import Any

from grpo_ext.environments.base import Environment, Row
from grpo_ext.rewards.scores import clipped


class InvalidAction(ValueError):
    """Raised if a turn contains no valid action.

    The message is shown to the model, so it should say what to write.
    """


class SteppedEnvironment(Environment):
    """Base class for environments that call `reset` and `step` of another package's object.

    A subclass must define `action` and `observation_text`. The score is the sum of the rewards. The
    state also contains `steps`, the number of valid actions, and `invalid_actions`, the number of
    turns without a valid action. After such a turn, the model sees the message of `InvalidAction`.

    Args:
        instance: the object with `reset` and `step`.
        invalid_action_reward: added to the score for each turn without a valid action.
    """

    def __init__(self, instance: object, invalid_action_reward: float = 0.0):
        self.score: float = 0.0
        self.steps = 0
        self.invalid_actions = 0
        self._instance: Any = instance
        self._invalid_action_reward = invalid_action_reward

    def action(self, text: str) -> object:
        """Convert the text of a turn to an action; raise `InvalidAction` if there is none."""
        raise NotImplementedError

    def observation_text(self, observation: object) -> str:
        """Convert an observation to the text that the model sees."""
        raise NotImplementedError

    def reset(self, row: Row) -> str:
        arguments = {}
        if takes(self._instance.reset, "seed"):
            arguments["seed"] = row["seed"]
        returned = self._instance.reset(**arguments)
        if isinstance(returned, tuple) and len(returned) == 2:
            returned = returned[0]  # the other value is a dict for debugging
        return self.observation_text(getattr(returned, "observation", returned))

    def step(self, text: str) -> tuple[str, bool]:
        try:
            action = self.action(text)
        except InvalidAction as error:
            self.invalid_actions += 1
            self.score += self._invalid_action_reward
            return str(error), False
        observation, reward, over = outcome(self._instance.step(action))
        self.steps += 1
        self.score += reward
        return self.observation_text(observation), over

    def close(self) -> None:
        close = getattr(self._instance, "close", None)
        if close is not None:
            close()


def outcome(returned: object) -> tuple[object, float, bool]:
    """Unpack a result of `step` into (observation, reward, whether the episode is over).

    The reward of an object may be `None`, which counts as 0.

    Raises:
        TypeError: if `returned` is neither a tuple in the format of Gymnasium or Gym, nor an object
            with `reward` and `done`, as in OpenEnv, or if the reward in a tuple is `None`.
    """
    if isinstance(returned, tuple) and len(returned) == 5:
        observation, reward, terminated, truncated, _ = returned
        return observation, float(reward), bool(terminated or truncated)
    if isinstance(returned, tuple) and len(returned) == 4:
        observation, reward, done, _ = returned
        return observation, float(reward), bool(done)
    if not hasattr(returned, "reward") or not hasattr(returned, "done"):
        raise TypeError(
            "step must return (observation, reward, terminated, truncated, info), or an object "
            f"with reward and done; it returned {clipped(returned)}"
        )
    reward = 0.0 if returned.reward is None else float(returned.reward)
    return getattr(returned, "observation", returned), reward, bool(returned.done)


def takes(function: Any, parameter: str) -> bool:
    """Return whether a function accepts a keyword argument with the name `parameter`."""
    parameters = inspect.signature(function).parameters
    kinds = [known.kind for known in parameters.values()]
    return parameter in parameters or inspect.Parameter.VAR_KEYWORD in kinds
