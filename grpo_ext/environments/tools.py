"""Functions that a model calls: TRL's `tools`, and the public methods of its environments."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from grpo_ext.environments.base import Environment, Row, plain_attributes
from grpo_ext.rewards.deadline import waiting

Tool = Callable[..., Any]
STATE_SECONDS = 10.0  # time limit of an async `get_reward`
NO_TOOLS = ("reset", "get_reward")  # public methods that the model cannot call


class ToolEnvironment(Environment):
    """Functions, an instance of an environment of TRL, or both; an episode ends with a turn without
    a call.

    The functions have type hints and a docstring. The instance has `reset(**row)`, and the model
    may call its other methods.
    """

    joint = ""

    def __init__(self, functions: Sequence[Tool] = (), instance: Any = None):
        self._functions = list(functions)
        self.instance = instance

    def tools(self) -> Sequence[Tool]:
        return [*self._functions, *public_methods(self.instance)]

    def reset(self, row: Row) -> str | None:
        if self.instance is None:
            return None
        parameters = inspect.signature(self.instance.reset).parameters.values()
        takes_seed = any(p.name == "seed" or p.kind == p.VAR_KEYWORD for p in parameters)
        said = self.instance.reset(
            **{key: value for key, value in row.items() if takes_seed or key != "seed"}
        )
        if isinstance(said, list) and all(block.get("type") == "text" for block in said):
            return "".join(block["text"] for block in said)
        return said

    def step(self, text: str) -> tuple[str, bool]:
        """End the episode: the turn has no call."""
        return "", True

    def state(self) -> Row:
        found = plain_attributes(self.instance) if self.instance is not None else {}
        own = getattr(self.instance, "get_reward", None)
        score = own() if own else None
        return {
            "score": waiting(score, STATE_SECONDS)() if inspect.iscoroutine(score) else score,
            **found,
        }


def public_methods(instance: Any) -> list[Tool]:
    """Return the methods that the model may call. They are found on the class, so that no property
    is evaluated.
    """
    names = (
        [name for name, _ in inspect.getmembers(type(instance), inspect.isfunction)]
        if instance is not None
        else []
    )
    return [
        getattr(instance, name)
        for name in names
        if not name.startswith("_") and name not in NO_TOOLS
    ]


class Misuse(ValueError):
    """The model called a tool that does not exist, or with arguments that it does not take."""


def call(tools: Sequence[Tool], function: dict[str, Any]) -> Any:
    """Call a tool by `{"name": ..., "arguments": {...}}` and return its result; for an async tool,
    its coroutine.

    `Misuse` if there is no such tool or it does not take these arguments, and whatever the tool
    raises.
    """
    by_name = {tool.__name__: tool for tool in tools}
    name = function.get("name")
    arguments = function.get("arguments")
    if not isinstance(name, str) or name not in by_name:
        raise Misuse(
            f"there is no tool {str(name)[:100]!r}; there are {', '.join(sorted(by_name))}"
        )
    if not isinstance(arguments, dict):
        raise Misuse(f"the arguments of {name} must be a JSON object")
    tool = by_name[name]
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError as error:
        raise Misuse(f"{name}: {error}") from error
    return tool(**arguments)
