"""Environments that are registered with Gymnasium: `environment: {name: gymnasium:ID}`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_ext.common.modules import optional_package
from grpo_ext.environments.stepped import InvalidAction, SteppedEnvironment
from grpo_ext.rewards.answers import answer_without_thoughts

REQUIREMENT = "gymnasium>=1.0,<2"
COLORED = re.compile(r"\x1b\[[\d;]*m(.*?)\x1b\[0m", re.DOTALL)  # text colored by terminal codes


class GymnasiumEnvironment(SteppedEnvironment):
    """A Gymnasium environment whose actions are numbers (`Discrete`) or strings (`Text`).

    In the render mode `ansi`, the model sees the rendered text, with brackets around colored parts;
    in other modes, it sees the observation. `ansi` is used if the environment supports it, unless
    `args` sets another `render_mode`.

    Args:
        environment_id: the id, such as `FrozenLake-v1`, or `package.module:ID` for an id that is
            registered when the module is imported.
        args: keyword arguments for `gymnasium.make`.
        actions: for a `Discrete` space, one word for each action, in order. The model then writes
            the word instead of the number; case is ignored. If `None`, the model writes numbers.
        invalid_action_reward: added to the score for each turn without a valid action.

    Raises:
        ValueError: if Gymnasium is not installed; if the action space is neither `Discrete` nor
            `Text`; or if `actions` is set for a `Text` space, does not have one word per action, or
            has two words that are equal when case is ignored. Errors of `gymnasium.make`, such as
            for an unknown id, are raised unchanged.
    """

    def __init__(
        self,
        environment_id: str,
        args: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        invalid_action_reward: float = 0.0,
    ):
        gymnasium = optional_package("gymnasium", REQUIREMENT)
        arguments = {"disable_env_checker": True, **(args or {})}
        made = gymnasium.make(environment_id, **arguments)
        if "render_mode" not in arguments and "ansi" in made.metadata.get("render_modes", []):
            made.close()
            made = gymnasium.make(environment_id, **arguments, render_mode="ansi")
        super().__init__(made, invalid_action_reward)
        space = made.action_space
        self._words = [word.lower() for word in actions or []]
        try:
            check_actions(environment_id, space, self._words)
        except ValueError:
            made.close()
            raise
        self._space = space
        longest_first = sorted(map(re.escape, self._words), key=len, reverse=True)
        self._word = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
        self._is_numbered = isinstance(space, gymnasium.spaces.Discrete)
        self._first = int(space.start) if self._is_numbered else 0

    def action(self, text: str) -> object:
        """Return the action in the last `<answer>` block outside a turn's thoughts.

        If no block is closed, or the last one is empty, the text outside the thoughts is used.
        In a `Text` space, all of this text is the action. In a `Discrete` space, the text must
        contain exactly one number or, if `actions` is set, exactly one of its words.

        Raises:
            InvalidAction: if there is no valid action, or more than one.
        """
        answer = answer_without_thoughts(text)
        if not self._is_numbered:
            if answer not in self._space:
                raise InvalidAction(f"Write a string that is valid for {self._space}.")
            return answer
        if self._words:
            named = self._word.findall(answer.lower())
            if len(named) != 1:
                raise InvalidAction(f"Write one of: {', '.join(self._words)}.")
            return self._first + self._words.index(named[0])
        numbers = [int(number) for number in re.findall(r"-?\d{1,9}", answer)]
        last = self._first + int(self._space.n) - 1
        if len(numbers) != 1 or not self._first <= numbers[0] <= last:
            raise InvalidAction(f"Write one whole number from {self._first} to {last}.")
        return numbers[0]

    def observation_text(self, observation: object) -> str:
        if self._instance.render_mode == "ansi":
            return COLORED.sub(r"[\1]", str(self._instance.render())).strip()
        return str(plain(observation))


def plain(observation: Any) -> Any:
    """Convert NumPy scalars and arrays in an observation to Python numbers and lists."""
    if isinstance(observation, tuple):
        return tuple(plain(part) for part in observation)
    if isinstance(observation, dict):
        return {name: plain(part) for name, part in observation.items()}
    if hasattr(observation, "tolist"):
        return observation.tolist()
    return observation


def check_actions(environment_id: str, space: Any, words: Sequence[str]) -> None:
    """Check that an action space is supported, and that the words fit it.

    Args:
        environment_id: the id of the environment.
        space: the action space, from Gymnasium.
        words: one lowercase word for each action; empty if `actions` is not set.

    Raises:
        ValueError: if the action space is not supported, or the words do not fit it.
    """
    spaces = optional_package("gymnasium", REQUIREMENT).spaces
    if not isinstance(space, spaces.Discrete | spaces.Text):
        raise ValueError(
            f"{environment_id} has the action space {type(space).__name__}, but only Discrete "
            "and Text are supported, because the model states its actions as text. Use an "
            "environment with one of these action spaces."
        )
    if not words:
        return
    if isinstance(space, spaces.Text):
        raise ValueError(
            f"`actions` must not be set for {environment_id}, whose action space is Text. "
            "Remove `actions`."
        )
    if len(words) != space.n:
        raise ValueError(
            f"`actions` has the wrong number of words: {len(words)}, but the environment "
            f"has {space.n} actions. List one word for each action."
        )
    if len({*words}) != len(words):
        raise ValueError(
            "two words in `actions` are equal when case is ignored. Choose a different word "
            "for each action."
        )
