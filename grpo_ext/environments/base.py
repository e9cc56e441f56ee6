"""The base class of environments, and the lookup of environments by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from grpo_ext.common.modules import load_class

Row = dict[str, Any]
PLAIN_TYPES = str | int | float | list | tuple | dict | None
# Import paths instead of classes, so that a run imports only the environments that it uses.
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
    """Raised if an environment reads a column that the dataset row does not have."""

    def __str__(self) -> str:
        return str(self.args[0])  # `KeyError` would put the message in quotes


class EpisodeRow(Row):
    """The dict passed to `reset`; looking up a missing column raises `MissingColumn`."""

    def __missing__(self, column: str) -> Any:
        raise missing_column(column, self)


def missing_column(column: str, row: Row) -> MissingColumn:
    """Return the error for a missing column; its message lists the columns of `row`."""
    return MissingColumn(
        f"the row has no column {column!r}. Its columns: {', '.join(sorted(map(str, row)))}"
    )


class Environment:
    """Base class for environments: games, simulations or sets of tools.

    An instance plays one episode: it begins the episode, answers the model's turns, and can end the
    episode. A subclass must define `step`, `tools`, or both.

    The keyword arguments of a subclass's `__init__` are its options in a recipe. The public
    attributes that hold plain data form the state, which rewards can read.
    """

    score: float | None = None  #: the episode's score, used by the reward `environment`
    joint = "\n"  #: text between the prompt and the text returned by `reset`

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Return the functions that the model may call, such as bound methods.

        Each function needs type hints and a Google-style docstring, and may be async. Its result is
        sent to the model in a message with the role `tool`. Turns without a tool call are passed to
        `step`. By default, there are no tools. The method `tools` itself must not be async; if it
        is, the environment is rejected before the run starts.
        """
        return ()

    def reset(self, row: Row) -> str | Awaitable[str | None] | None:
        """Begin an episode. The method may be async.

        Args:
            row: a row of the dataset. If it has no `seed`, an int computed from the other columns
                is added as `row["seed"]`. The seed is the same for all completions of a prompt:
                derive all randomness from it, so that the completions of a group start from the
                same state. Reading a missing column raises a `KeyError` that lists the columns of
                the row.

        Returns:
            Text to append to the last message of the prompt, or `None` (the default) for no text.
        """

    def step(self, text: str) -> tuple[str, bool] | Awaitable[tuple[str, bool]]:
        """Answer the model's turn. The method may be async.

        The default implementation ends the episode if the environment has tools.

        Args:
            text: the turn, without special tokens.

        Returns:
            The answer, and whether the episode is over. If it is over, the answer is not shown to
            the model.

        Raises:
            NotImplementedError: if the subclass has neither tools nor its own `step`.
        """
        if self.tools():
            return "", True
        raise NotImplementedError

    def cut_off(self, text: str) -> None:
        """Handle the last turn of an episode if the episode's token limit cut the turn off.

        `step` is not called for such a turn. By default, the turn is ignored, so it does not change
        the score. The method must not be async; if it is, each call counts as a failure.

        Args:
            text: the incomplete turn, without special tokens.
        """

    def close(self) -> None:
        """Release resources of the environment, such as a connection or a sandbox.

        The method may be async. It is called once for each instance: after its episode has been
        scored, or at the end of the run, even after an error. An instance may be closed before
        `reset`. By default, nothing is released.
        """

    def problem_key(self) -> str | int | None:
        """Return a key that all episodes of the same problem share, whatever their seeds.

        `None`, the default, means that each seed is a separate problem. An evaluation calls the
        method after `reset`. For standard errors, all episodes of a problem form one cluster.
        """
        return None

    def rows(self, split: str) -> Iterable[Row] | None:
        """Return the rows that come with the environment, for `task: environment`.

        A row may have a column `prompt`, a list of messages that replaces the task's prompt. By
        default, return `None`, which means that the environment has no rows; the task then creates
        rows that contain only a seed.

        Args:
            split: "train" or "test".
        """
        return None

    def state(self) -> dict[str, Any]:
        """Return the state, which rewards receive in the column `environment`.

        By default, the state contains `score` and the public attributes that hold plain data. The
        method must not be async; if it is, each call counts as a failure.
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
    """Return the class of an environment, or a callable that creates its adapter.

    An adapter wraps an environment of another package.

    Args:
        name: a key of `MODULES`, `package.module:Class` or `file.py:Class`; for an adapter, a key
            of `ADAPTERS`, a colon and the environment to wrap, as in `gymnasium:FrozenLake-v1`.

    Raises:
        ValueError: if the name is unknown, if the class cannot be imported, or if it is neither a
            subclass of `Environment` nor another class with a `reset` method, such as one for TRL's
            `environment_factory`. For an adapter, the wrapped environment is not checked.
    """
    package, sign, played = name.partition(":")
    if sign and package in ADAPTERS:
        return partial(load_class("environment", ADAPTERS[package], {}), played)
    cls = load_class("environment", name, MODULES)
    if not isinstance(cls, type) or not hasattr(cls, "reset"):
        raise ValueError(
            f"{name!r} is not an environment: expected a subclass of grpo_ext.Environment, or a "
            "class with a `reset` method, as for TRL's environment_factory."
        )
    return cls
