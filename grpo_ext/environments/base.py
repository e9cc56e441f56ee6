"""The base class of environments, and environments by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo_ext.common.modules import load_class

Row = dict[str, Any]
PLAIN_TYPES = (str, int, float, list, tuple, dict, type(None))
# Paths, so that a run loads only its own environment.
MODULES = {
    "check": "grpo_ext.environments.check:Check",
    "guess": "grpo_ext.environments.guess:Guess",
}


class Environment:
    """A world for one completion.

    It begins the episode, answers each turn of the model, and ends the episode.

    A subclass takes its options as keyword arguments of `__init__`. Public attributes are its
    state.
    """

    score: float | None = None  #: worth of the episode, for the reward `environment`
    joint = "\n"  #: text between the prompt and the text of `reset`

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Return functions that the model may call, such as bound methods.

        They need type hints, and docstrings in Google style. Their results become messages of role
        `tool`. A turn without a call goes to `step`.
        """
        return ()

    def reset(self, row: Row) -> str | None:
        """Begin an episode with a row of the data set.

        `row["seed"]`, a column or an int made of the columns, is the same for all completions of a
        prompt. Take all randomness from it, so that the completions of a group face the same world.

        Returns:
            Text that follows the prompt in its last message, if any.
        """

    def step(self, text: str) -> tuple[str, bool]:
        """Answer a turn of the model.

        The default, for environments with tools, ends the episode.

        Args:
            text: the turn, without special tokens.

        Returns:
            The answer, and whether the episode is over; then the model does not get the answer.
        """
        if self.tools():
            return "", True
        raise NotImplementedError

    def problem_key(self) -> str | int | None:
        """Return what episodes of the same problem share although their seeds differ.

        `None`: each seed is a problem. Evaluation calls this after `reset`; its standard errors
        count the episodes of one problem once.
        """
        return None

    def state(self) -> dict[str, Any]:
        """Return what rewards read in the column `environment`.

        By default that is the score, and the public attributes with plain data.
        """
        return {"score": self.score, **plain_attributes(self)}


def plain_attributes(instance: object) -> dict[str, Any]:
    """Return the public attributes of an object that have plain data."""
    attributes = {}
    for name, value in vars(instance).items():
        if not name.startswith("_") and isinstance(value, PLAIN_TYPES):
            attributes[name] = value
    return attributes


def environment_class(name: str) -> type:
    """Return an environment by its name, or a user's class.

    Args:
        name: a key of `MODULES`, `package.module:Class` or `file.py:Class`.

    Raises:
        ValueError: there is no such class, or it is neither a subclass of `Environment` nor one
            that TRL's `environment_factory` takes.
    """
    cls = load_class("environment", name, MODULES)
    if isinstance(cls, type) and (issubclass(cls, Environment) or hasattr(cls, "reset")):
        return cls
    raise ValueError(
        f"{name!r} is not an environment: subclass grpo_ext.Environment, or define a method reset "
        "as TRL's environment_factory requires."
    )
