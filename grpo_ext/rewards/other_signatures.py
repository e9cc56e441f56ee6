"""Adapt rewards that were written for ms-swift or verl, so that they take TRL's arguments.

ms-swift: an object of a class that extends `ORM` or `AsyncORM`, called as `orm(texts, **columns)`.
verl: a function `compute_score(data_source, solution_str, ground_truth, extra_info)` that scores
one text.
"""

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from grpo_ext.rewards.reward import Score, plain_text
from grpo_ext.rewards.signature import is_async, name_of

ORM_CLASSES = ("ORM", "AsyncORM")  # ms-swift's base classes
SCORE_PARAMETERS = ("solution_str", "ground_truth")  # a function with both is one for verl


def with_trl_arguments(reward: Callable, options: Mapping[str, Any]) -> Callable:
    """Wrap a reward that was written for ms-swift or verl, so that it takes TRL's arguments.

    Other rewards are returned unchanged.

    Args:
        reward: the reward.
        options: the options that the recipe sets for it; used for verl only.

    Raises:
        TypeError: if a function that was written for verl is async.
    """
    if any(base.__name__ in ORM_CLASSES for base in type(reward).__mro__[1:]):
        return of_swift(reward)
    if set(SCORE_PARAMETERS) <= set(inspect.signature(reward).parameters):
        return of_verl(reward, options)
    return reward


def imports_swift(error: BaseException | None) -> bool:
    """Return whether an error says that the package of ms-swift is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "swift"


def of_swift(orm: Callable) -> Callable:
    """Return a reward that calls an object written for ms-swift.

    The object gets the texts as its first argument and, by name, the columns of the dataset, TRL's
    other arguments, and the tokens of the texts as `response_token_ids`. If it does not take
    `**kwargs`, it gets only the arguments that it names.
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

    The reward reads verl's columns: `reward_model`, a mapping with `ground_truth` or the ground
    truth itself, and, where the data has them, `data_source` and `extra_info`. `options` are passed
    on if the function has parameters of their names, and ignored otherwise. The score is the number
    that the function returns, or the entry `score` of a mapping.

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
