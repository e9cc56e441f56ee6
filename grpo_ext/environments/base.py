"""The base class of environments, and the lookup of environments by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from grpo_ext.common.modules import load_class

Row = dict[str, Any]
PLAIN_TYPES = str | int | float | list | tuple | dict | None
# Import paths, so that a run imports only its own environment.
MODULES = {
    "check": "grpo_ext.environments.check:Check",
    "guess": "grpo_ext.environments.guess:Guess",
}
# Adapters for environments of other packages, by the prefix of their names.
ADAPTERS = {
    "gymnasium": "grpo_ext.environments.gymnasium_id:GymnasiumEnvironment",
    "openenv": "grpo_ext.environments.openenv_class:OpenEnvEnvironment",
    "verifiers": "grpo_ext.environments.verifiers_package:VerifiersEnvironment",
}


class MissingColumn(KeyError):
    """The environment reads a column that the row of the dataset lacks."""

    def __str__(self) -> str:
        return str(self.args[0])  # `KeyError` would put the message in quotes


class EpisodeRow(Row):
    """The row that is passed to `reset`; reading a column that it lacks raises `MissingColumn`."""

    def __missing__(self, column: str) -> Any:
        raise missing_column(column, self)


def missing_column(column: str, row: Row) -> MissingColumn:
    """Return the error for a column that a row lacks."""
    return MissingColumn(
        f"the row has no column {column!r}. Its columns: {', '.join(sorted(map(str, row)))}"
    )


class Environment:
    """The environment of one episode: a game, a simulation or a set of tools.

    It begins the episode, answers each turn of the model, and ends the episode.

    A subclass takes its options as keyword arguments of `__init__`. Its public attributes are its
    state, which rewards can read.
    """

    score: float | None = None  #: value of the episode, read by the reward `environment`
    joint = "\n"  #: text between the prompt and the text of `reset`

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Return functions that the model may call, such as bound methods.

        They need type hints and Google-style docstrings. Their results become messages of role
        `tool`. A turn without a call goes to `step`. By default, there are none. The method must
        not be async.
        """
        return ()

    def reset(self, row: Row) -> str | Awaitable[str | None] | None:
        """Begin an episode with a row of the dataset. The method may be async.

        `row["seed"]` is the dataset's column `seed` or, if there is none, an int computed from the
        other columns. Either way it is the same for all completions of a prompt: derive all
        randomness from it, so that the completions of a group face the same world. Reading a column
        that the row lacks raises a `KeyError` that lists the columns of the row.

        Returns:
            Text to append to the last message of the prompt, or `None` (the default) for no text.
        """

    def step(self, text: str) -> tuple[str, bool] | Awaitable[tuple[str, bool]]:
        """Answer a turn of the model. The method may be async.

        By default, the episode ends if the environment has tools.

        Args:
            text: the turn, without special tokens.

        Returns:
            The answer, and whether the episode is over; if so, the model does not see the answer.

        Raises:
            NotImplementedError: if the subclass has neither tools nor its own `step`.
        """
        if self.tools():
            return "", True
        raise NotImplementedError

    def cut_off(self, text: str) -> None:
        """Handle the last turn of an episode if it was cut off because no room was left for tokens.

        Such a turn is not answered. By default, nothing happens, so the turn does not change the
        score. The method must not be async.

        Args:
            text: the turn as far as it was written, without special tokens.
        """

    def close(self) -> None:
        """Release what the environment holds, such as a connection or a sandbox.

        The method may be async. It is called once for each instance: after its episode has been
        scored, or at the end of the run, even after an error. An instance may be closed before
        `reset`. By default, nothing is released.
        """

    def problem_key(self) -> str | int | None:
        """Return a key that is the same for all episodes of a problem, whatever their seeds.

        `None`, the default, means that each seed is a separate problem. Evaluation calls this after
        `reset`; its standard errors treat all episodes of a problem as one cluster.
        """
        return None

    def rows(self, split: str) -> Iterable[Row] | None:
        """Return the rows that come with the environment, for `task: environment`.

        If a row has the column `prompt`, a list of messages, it replaces the prompt of the task.
        `None`, the default, means that the environment has no rows; the task then uses seeds as
        rows.

        Args:
            split: "train" or "test".
        """
        return None

    def state(self) -> dict[str, Any]:
        """Return the state that rewards read in the column `environment`.

        By default, it contains the score and the public attributes with plain data. The method must
        not be async.
        """
        return {"score": self.score, **plain_attributes(self)}


def plain_attributes(instance: object) -> dict[str, Any]:
    """Return the public attributes of an instance that hold plain data, by name.

    Plain data are strings, numbers, lists, tuples, dicts and `None`. Class attributes are left out.
    """
    attributes = {}
    for name, value in vars(instance).items():
        if not name.startswith("_") and isinstance(value, PLAIN_TYPES):
            attributes[name] = value
    return attributes


def environment_class(name: str) -> Callable[..., Any]:
    """Return an environment class by its name, or a user's class by its path.

    For an environment of another package, return the adapter that creates it.

    Args:
        name: a key of `MODULES`, `package.module:Class` or `file.py:Class`; or a key of `ADAPTERS`,
            a colon and the environment that the adapter creates, as in `gymnasium:FrozenLake-v1`.

    Raises:
        ValueError: if the class cannot be imported, or is neither a subclass of `Environment` nor a
            class with `reset`, as for TRL's `environment_factory`.
    """
    package, sign, played = name.partition(":")
    if sign and package in ADAPTERS:
        return partial(load_class("environment", ADAPTERS[package], {}), played)
    cls = load_class("environment", name, MODULES)
    if not isinstance(cls, type) or not hasattr(cls, "reset"):
        raise ValueError(
            f"{name!r} is not an environment: write a subclass of grpo_ext.Environment, or a class "
            "with a `reset` method, as TRL's environment_factory requires."
        )
    return cls
