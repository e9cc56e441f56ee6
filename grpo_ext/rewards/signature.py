"""Read a reward function's signature: columns, options, and arguments from the trainer.

Example:

    def countdown(completions, nums, target, *, tolerance: float = 1e-5): ...
                  strings      needed columns   option
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from grpo_ext.common.suggestions import did_you_mean, unknown
from grpo_ext.common.untrusted import is_secret

# The arguments that TRL's trainer passes besides the completions and the dataset's columns.
EXTRAS = ("prompts", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
# Marks an option without a default, which must be given.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Signature:
    """The parameters of a reward function, grouped by their use."""

    columns: tuple[str, ...] = ()  # dataset columns that the function requires
    # other parameters with defaults; each is set as an option or else filled from a column
    optional: dict[str, Any] = field(default_factory=dict)
    extras: tuple[str, ...] = ()  # its parameters that are in `EXTRAS`
    # keyword-only parameters with their defaults, or `REQUIRED`
    options: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)  # annotations of `options` and `optional`
    rest: bool = False  # whether the function has `**columns`, which receives all other columns


def object_of(reward: Callable) -> Callable:
    """Return a function or object unchanged; for a class, return a new instance.

    Raises:
        TypeError: if the class has no `__call__`, or its constructor needs arguments.
    """
    if not inspect.isclass(reward):
        return reward
    name = reward.__qualname__
    if not any("__call__" in vars(base) for base in reward.__mro__):
        raise TypeError(
            f"{name} is a class without __call__, so it cannot be used as a reward. Define "
            "`__call__(self, completions, **columns)` in it, or use a function instead."
        )
    needed = [
        parameter.name
        for parameter in inspect.signature(reward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise TypeError(
            f"{name} is a class, and its constructor needs {', '.join(needed)}. Create an object, "
            f"`reward = {name}(...)`, and name or register `reward` instead of the class."
        )
    return cast(Callable, reward())


def is_async(function: Callable) -> bool:
    """Return whether a reward is an async function, or an object whose `__call__` is async."""
    return inspect.iscoroutinefunction(routine_of(function))


def routine_of(function: Callable) -> Callable:
    """Return the function behind a reward: unwrap partials, and look up an object's `__call__`."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__


def name_of(function: Callable) -> str:
    """Return the name of a function, or of an object's class, for messages and comparisons.

    For a partial, return the name of the function that it wraps.
    """
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def module_of(function: Callable) -> str:
    """Return the name of the module that defines a function or an object's class.

    For a partial, return the module of the function that it wraps.
    """
    while isinstance(function, partial):
        function = function.func
    return function.__module__


def read_signature(function: Callable) -> Signature:
    """Return the `Signature` of a reward function or object.

    Raises:
        TypeError: if there is no parameter `completions`, or a parameter accepts only positional
            arguments.
        ValueError: if Python cannot determine the parameters.
    """
    parameters = inspect.signature(function).parameters
    label = name_of(function)
    if "completions" not in parameters:
        raise TypeError(
            f"{label}: a reward function needs a parameter named `completions`, a list of strings."
        )
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"{label}: parameter `{name}` accepts only positional arguments, but rewards are "
                "called with keyword arguments. Make it a named parameter."
            )
    named = {
        name: p
        for name, p in parameters.items()
        if name != "completions" and p.kind is not p.VAR_KEYWORD
    }
    extras = tuple(name for name in named if name in EXTRAS)
    own = {name: p for name, p in named.items() if name not in EXTRAS}
    options = {name: p.default for name, p in own.items() if p.kind is p.KEYWORD_ONLY}
    others = {name: p.default for name, p in own.items() if p.kind is not p.KEYWORD_ONLY}
    columns = tuple(name for name, default in others.items() if default is REQUIRED)
    optional = {name: default for name, default in others.items() if default is not REQUIRED}
    rest = any(p.kind is p.VAR_KEYWORD for name, p in parameters.items() if name != "completions")
    try:
        hints = get_type_hints(routine_of(function), include_extras=True)
    except Exception:  # annotations that cannot be resolved
        hints = {}
    types = {name: hints[name] for name in (*options, *optional) if name in hints}
    return Signature(columns, optional, extras, options, types, rest)


def complete_options(reward: str, signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """Return the default options, overridden by `given`.

    Args:
        reward: the name of the reward, for messages.
        signature: the parameters of the reward.
        given: values for keyword-only parameters, and for others that have a default.

    Raises:
        ValueError: if an option is unknown, has a value of the wrong type, or is missing.
    """
    takes = [*signature.options, *signature.optional]
    for name, value in given.items():
        if name not in takes:
            known = [*takes, "weight", "label", "tasks"]
            raise ValueError(f"Reward {reward!r}: {unknown('option', name, known)}")
        annotation = signature.types.get(name, Any)
        wrong = misfit(value, annotation)
        if wrong:
            hint = did_you_mean(str(value), map(str, get_args(annotation)))
            shown = "" if hides_value(name) else f" = {value!r}"
            raise ValueError(f"Reward {reward!r}: option {name}{shown}: {wrong}.{hint}")
    options = {**signature.options, **given}
    missing = [name for name, value in options.items() if value is REQUIRED]
    if missing:
        needed = " and its option ".join(missing)
        raise ValueError(f"Reward {reward!r} needs a value for its option {needed}.")
    return options


def hides_value(name: str) -> bool:
    """Return whether an option's name suggests a secret or a URL, which messages must not show."""
    return is_secret(name) or is_secret(name.removesuffix("_env")) or name.endswith("url")


def misfit(value: Any, annotation: Any) -> str | None:
    """Return why `value` does not match a type annotation and its bounds, or `None` if it does.

    The value is validated as JSON: a list is accepted for a tuple, but a string is not accepted for
    a number. A value that JSON cannot represent must be an instance of the type. If pydantic does
    not support the type, any value is accepted.
    """
    try:
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
        try:
            adapter.validate_json(json.dumps(value))
        except TypeError:  # JSON cannot represent the value
            adapter.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        return message.replace("Input should be", "it must be")
    except Exception:  # from pydantic or json
        pass
    return None
