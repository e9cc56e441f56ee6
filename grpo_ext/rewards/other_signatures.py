"""Adapt rewards that were written for ms-swift or verl to TRL's reward signature.

A reward for ms-swift is an instance of a subclass of `ORM` or `AsyncORM`, which is called as
`orm(completions, **columns)`. A reward for verl is a function `compute_score(data_source,
solution_str, ground_truth, extra_info)`, which scores one completion.
"""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from grpo_ext.rewards.reward import Score, plain_text
from grpo_ext.rewards.signature import is_async, name_of

ORM_CLASSES = ("ORM", "AsyncORM")  # ms-swift's base classes
SCORE_PARAMETERS = ("solution_str", "ground_truth")  # a function with both is written for verl


def with_trl_arguments(reward: Callable, options: Mapping[str, Any]) -> Callable:
    """Adapt a reward that was written for ms-swift or verl to TRL's reward signature.

    Any other reward is returned unchanged.

    Args:
        reward: a function, or an object that can be called.
        options: the options that the recipe sets for the reward; used only if the reward was
            written for verl.

    Raises:
        TypeError: if a function that was written for verl is async.
        ValueError: if Python cannot determine the reward's parameters.
    """
    if any(base.__name__ in ORM_CLASSES for base in type(reward).__mro__[1:]):
        return of_swift(reward)
    if set(SCORE_PARAMETERS) <= set(inspect.signature(reward).parameters):
        return of_verl(reward, options)
    return reward


def imports_swift(error: BaseException | None) -> bool:
    """Return whether an error means that `swift`, ms-swift's package, is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "swift"


def of_swift(orm: Callable) -> Callable:
    """Return a reward that calls an object written for ms-swift.

    The reward is async if the object is. The object is called with the completions as a list of
    strings, and with keyword arguments: the dataset columns, TRL's other arguments, and the
    completions' token ids as `response_token_ids`. If the object does not accept `**kwargs`, it
    gets only the arguments that it names.
    """
    parameters = list(inspect.signature(orm).parameters.values())[1:]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}

    def arguments(completion_ids: Any, columns: dict[str, Any]) -> dict[str, Any]:
        given = {**columns, "response_token_ids": completion_ids}
        return {name: value for name, value in given.items() if takes_all or name in named}

    def call(completions: list[Any], completion_ids: Any = None, **columns: Any) -> Any:
        return orm(list(map(plain_text, completions)), **arguments(completion_ids, columns))

    async def call_async(completions: list[Any], completion_ids: Any = None, **columns: Any) -> Any:
        return await orm(list(map(plain_text, completions)), **arguments(completion_ids, columns))

    reward: Any = call_async if is_async(orm) else call
    reward.__name__ = reward.__qualname__ = type(orm).__name__
    needed = [p for name, p in named.items() if name != "response_token_ids"]
    reward.__signature__ = inspect.Signature(
        [
            Parameter("completions", Parameter.POSITIONAL_OR_KEYWORD),
            *[p.replace(kind=Parameter.KEYWORD_ONLY) for p in needed],
            Parameter("columns", Parameter.VAR_KEYWORD),
        ]
    )
    return reward


def of_verl(compute_score: Callable, options: Mapping[str, Any]) -> Callable:
    """Return a reward that calls a function written for verl once for each completion.

    The reward requires the column `reward_model`, whose entries are the ground truth or mappings
    with `ground_truth`. If the function accepts `data_source` or `extra_info`, it gets the row's
    entry in that column, or `None` if the data does not have the column. An option is passed if the
    function has a parameter of the same name, and ignored otherwise. If the function returns a
    mapping, the score is the mapping's entry `score`.

    Raises:
        TypeError: if the function is async.
    """
    name = name_of(compute_score)
    if is_async(compute_score):
        raise TypeError(
            f"{name} is async, which is not supported for functions with verl's parameter "
            "`solution_str`. Write a reward `async def reward(completions, **columns)` that awaits "
            f"{name} for each completion."
        )
    parameters = inspect.signature(compute_score).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    names = {p.name for p in own} - {*SCORE_PARAMETERS, "data_source", "extra_info"}
    passed = {name: option for name, option in options.items() if name in names}

    def reward(completions: list[Any], reward_model: list[Any], **columns: Any) -> list[Score]:
        scores = []
        for row, completion in enumerate(completions):
            truth = reward_model[row]
            if isinstance(truth, Mapping):
                truth = truth["ground_truth"]
            given = {**passed, "solution_str": plain_text(completion), "ground_truth": truth}
            for column in ("data_source", "extra_info"):
                if takes_all or any(p.name == column for p in own):
                    values = columns.get(column)
                    given[column] = None if values is None else values[row]
            score = compute_score(**given)
            scores.append(score["score"] if isinstance(score, Mapping) else score)
        return scores

    reward.__name__ = reward.__qualname__ = name
    return reward
