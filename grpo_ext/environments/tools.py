"""Functions that a model can call: TRL's `tools`, and the public methods of TRL environments."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from grpo_ext.environments.background import result_of
from grpo_ext.environments.base import Environment, Row, missing_column, plain_attributes
from grpo_ext.rewards.scores import clipped

Tool = Callable[..., Any]
STATE_SECONDS = 10.0  # time limit of an async `get_reward`
NOT_TOOLS = ("reset", "get_reward")  # public methods that the model cannot call


class ToolEnvironment(Environment):
    """An environment whose tools are functions, the methods of a TRL environment, or both.

    An episode ends at the first turn that calls no tool.

    Args:
        functions: tools that are functions, with type hints and a docstring.
        instance: a TRL environment, or `None` if the only tools are `functions`. Its `reset(**row)`
            begins an episode, its `get_reward`, if defined, returns the score, and its `close`, if
            defined without parameters, releases its resources. All other public methods are tools.
    """

    joint = ""

    def __init__(self, functions: Sequence[Tool] = (), instance: object = None):
        self._functions = list(functions)
        self.instance: Any = instance

    def tools(self) -> Sequence[Tool]:
        return [*self._functions, *public_methods(self.instance)]

    def reset(self, row: Row) -> str | Awaitable[str | None] | None:
        if self.instance is None:
            return None
        arguments = dict(row)
        parameters = inspect.signature(self.instance.reset).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        if "seed" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            arguments.pop("seed", None)
        for parameter in parameters.values():
            is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            is_needed = is_named and parameter.default is parameter.empty
            if is_needed and parameter.name not in arguments:
                raise missing_column(parameter.name, row)
        opening = self.instance.reset(**arguments)
        if inspect.iscoroutine(opening):
            return text_of_async(opening)
        return text_of(opening)

    def step(self, text: str) -> tuple[str, bool]:
        """End the episode, because the turn calls no tool."""
        return "", True

    def close(self) -> None:
        """Call the instance's `close` if it has one without parameters; `close` may be async."""
        if closes(self.instance):
            return self.instance.close()

    def state(self) -> Row:
        if self.instance is None:
            return {"score": None}
        attributes = plain_attributes(self.instance)
        score = None
        get_reward = getattr(self.instance, "get_reward", None)
        if get_reward:
            score = get_reward()
            if inspect.iscoroutine(score):
                score = result_of(score, STATE_SECONDS)
        return {"score": score, **attributes}


def text_of(opening: Any) -> Any:
    """Join a list of text blocks into a string; return any other value unchanged."""
    if isinstance(opening, list):
        types = {block.get("type") for block in opening}
        if types <= {"text"}:
            return "".join(block["text"] for block in opening)
    return opening


async def text_of_async(opening: Coroutine[Any, Any, Any]) -> Any:
    """Await the coroutine of an async `reset`, and apply `text_of` to its result."""
    return text_of(await opening)


def public_methods(instance: object) -> list[Tool]:
    """Return the methods of an instance that the model may call; none if `instance` is `None`.

    The methods are looked up on the class, so that no property is evaluated.
    """
    if instance is None:
        return []
    methods = []
    for name, _ in inspect.getmembers(type(instance), inspect.isfunction):
        is_hook = name in NOT_TOOLS or (name == "close" and closes(instance))
        if not name.startswith("_") and not is_hook:
            methods.append(getattr(instance, name))
    return methods


def closes(instance: object) -> bool:
    """Return whether an instance has a method `close` without parameters.

    A `close` with parameters is a tool.
    """
    close = getattr(type(instance), "close", None)
    return inspect.isfunction(close) and len(inspect.signature(close).parameters) == 1


def checked_tools(returned: object) -> list[Tool]:
    """Check the result of `tools`, and return it as a list.

    Raises:
        TypeError: if `returned` is not a list or tuple of functions, or `tools` is async.
    """
    if inspect.iscoroutine(returned):
        returned.close()  # avoids a warning that the coroutine was never awaited
        raise TypeError("`tools` must not be async: write `def tools(self)`, which returns a list")
    if not isinstance(returned, list | tuple):
        raise TypeError(
            f"`tools` must return a list of functions, but returned {clipped(returned)}"
        )
    for tool in returned:
        if not hasattr(tool, "__name__") or not callable(tool):
            raise TypeError(
                "`tools` must return a list of functions, such as [self.look]; the list contains "
                f"{clipped(tool)}"
            )
    return list(returned)


class Misuse(ValueError):
    """Raised if the model calls an unknown tool, or calls a tool with unsuitable arguments."""


def call(tools: Sequence[Tool], function: dict[str, Any]) -> Any:
    """Call a tool and return its result; for an async tool, return the coroutine.

    Args:
        tools: the tools that the model may call.
        function: the call, `{"name": ..., "arguments": {...}}`.

    Raises:
        Misuse: if there is no such tool, or the arguments are not a dict or do not fit the tool.
        Exception: whatever the tool raises.
    """
    by_name = {tool.__name__: tool for tool in tools}
    name = function.get("name")
    arguments = function.get("arguments")
    available = f"available tools: {', '.join(sorted(by_name)) or 'none'}"
    if not isinstance(name, str):
        raise Misuse(f"the call has no tool name; {available}")
    if name not in by_name:
        raise Misuse(f"there is no tool {name[:100]!r}; {available}")
    if not isinstance(arguments, dict):
        raise Misuse(f"the arguments of {name} must be a JSON object")
    tool = by_name[name]
    try:
        inspect.signature(tool).bind(**arguments)
    except TypeError as error:
        raise Misuse(f"{name}: {error}") from error
    return tool(**arguments)
