"""The dataset columns that rewards read."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from grpo_ext.rewards.guard import is_reward_model, unguarded
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.signature import EXTRAS


def needed_columns(reward: Any) -> tuple[str, ...]:
    """Return the dataset columns that a reward needs.

    Return `()` for a reward model, and for a function whose parameters Python cannot determine.
    """
    function = unguarded(reward)
    if is_reward_model(function):
        return ()
    if hasattr(function, "columns"):
        return tuple(function.columns)
    return tuple(
        p.name
        for p in parameters_of(function) or ()
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in ("completions", *EXTRAS)
    )


def named_columns(rewards: Iterable[Any], columns: Sequence[str]) -> list[str]:
    """Return the names in `columns` that are parameters of any reward, except `prompt`."""
    parameters: set[str] = set()
    for reward in rewards:
        function = unguarded(reward)
        if isinstance(function, Reward):
            parameters.update(function.registration.columns, function.registration.optional)
        elif callable(function):
            for parameter in parameters_of(function) or ():
                if parameter.kind != parameter.VAR_KEYWORD:
                    parameters.add(parameter.name)
    parameters.discard("prompt")
    return [name for name in columns if name in parameters]


def columns_read(row: Mapping[str, object], rewards: Iterable[Any]) -> set[str]:
    """Return the columns of a row that any of the rewards reads by name or through `**kwargs`.

    An unregistered function is assumed to read all columns. A reward model reads only the prompt,
    so it adds no columns.
    """
    columns: set[str] = set()
    for reward in rewards:
        function = unguarded(reward)
        if isinstance(function, Reward):
            columns |= {name for name in row if function.reads(name)}
        elif not is_reward_model(function):
            columns |= row.keys()
    return columns


def parameters_of(function: Callable) -> list[inspect.Parameter] | None:
    """Return a function's parameters, or `None` if Python cannot determine them."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a function of an extension module
        return None
