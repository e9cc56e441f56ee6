"""What an environment is, and environments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from grpo_ext.common.modules import load_class
from grpo_ext.common.near import unknown

Row = dict[str, Any]
PLAIN = (str, int, float, list, tuple, dict, type(None))
# Named here rather than registered on import, as tasks are.
MODULES = {"check": "grpo_ext.environments.check:Check", "guess": "grpo_ext.environments.guess:Guess"}
_registered: dict[str, type[Environment]] = {}


class Environment:
    """A world for one completion: it opens the episode, answers each turn of the model, and says when it is over.

    A subclass takes its options as keyword arguments of `__init__`. Public attributes are its state.

    Attributes:
        score (`float`, *optional*): what the episode is worth, for the reward `environment`.
        joint: what stands between the prompt and the text of `reset`.
    """

    score: float | None = None
    joint = "\n"

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Functions that the model may call, with type hints and a docstring in the Google style, such as bound methods.

        Their results are written as messages of role `tool`. A turn that calls nothing goes to `step`.
        """
        return ()

    def reset(self, row: Row) -> str | None:
        """Begin an episode.

        Args:
            row: of the data set. `row["seed"]`, the row's own or an int made of its columns, is the same for all completions of
                a prompt: draw from it alone, so that the completions of a group face the same world.

        Returns:
            Text that follows the prompt in its last message; `None`: none.
        """

    def step(self, text: str) -> tuple[str, bool]:
        """Answer a turn of the model.

        Args:
            text: what the model wrote, without special tokens.

        Returns:
            The answer, and whether the episode is over, which leaves the answer unsaid. With tools and without a `step` of
            its own, an environment is over with the first turn that calls nothing.
        """
        if self.tools():
            return "", True
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What rewards read in the column `environment`: the score, and public attributes of the instance with plain data."""
        return {"score": self.score, **plain_attributes(self)}


def plain_attributes(instance: Any) -> dict[str, Any]:
    """The public attributes of an object with plain data."""
    own = {name: value for name, value in vars(instance).items() if not name.startswith("_")}
    return {name: value for name, value in own.items() if isinstance(value, PLAIN)}


def register_environment(name: str) -> Callable[[type[Environment]], type[Environment]]:
    """Decorator that makes a class an environment that recipes can name, in a file of `reward_plugins`.

    Raises:
        ValueError: if the name is taken by another class.
    """

    def decorate(cls: type[Environment]) -> type[Environment]:
        if name in MODULES or _registered.get(name, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"The environment name {name!r} is taken; {cls.__qualname__} needs another.")
        _registered[name] = cls
        return cls

    return decorate


def environment_class(name: str) -> type:
    """An environment by name, or a user's own as `package.module:Class` or `file.py:Class`: a subclass of `Environment`, or a
    class as TRL's `environment_factory` makes them.

    Raises:
        ValueError: if there is none, or it is neither.
    """
    if name in _registered:
        return _registered[name]
    place = MODULES.get(name, name)
    if ":" not in place:
        words = unknown("environment", name, {*MODULES, *_registered})
        raise ValueError(f"{words} One of your own is written `file.py:Class`.")
    cls = load_class("environment", name, place)
    if not (isinstance(cls, type) and (issubclass(cls, Environment) or hasattr(cls, "reset"))):
        raise ValueError(f"{name!r} is neither a subclass of grpo_ext.Environment nor a class with reset, as TRL has them.")
    return cls


def environment_classes() -> dict[str, type]:
    """The environments of this package, by name."""
    return {name: environment_class(name) for name in MODULES}


def options_of(cls: type) -> dict[str, Any]:
    """The options that an environment takes, with their defaults."""
    parameters = list(inspect.signature(cls).parameters.values())
    return {p.name: p.default for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
