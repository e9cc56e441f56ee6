"""What a recipe says of its environment: which one, its options, and how long an episode may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from grpo_ext.common.near import did_you_mean
from grpo_ext.environments.base import Environment, environment_class, options_of


@dataclass(frozen=True)
class EpisodeRules:
    """How episodes are played.

    Args:
        make: the environment's class.
        options: that it is made with.
        turns: the model's turns of an episode, at most.
        turn_tokens: tokens of a turn, at most; `None`: as many as the episode has left.
        credit: "episode": all turns have the advantage of the whole; "turn": each has its own, by what its state's numbers
            that the reward `environment` reads rise by from then on.
        step_timeout: seconds that the environment may take for an answer.
        answer_characters: of an answer, at most; the rest of it is cut off.
    """

    make: type[Environment]
    options: Mapping[str, Any]
    turns: int = 8
    turn_tokens: int | None = None
    credit: str = "episode"
    step_timeout: float = 10.0
    answer_characters: int = 10_000


OWN = {f.name: f for f in fields(EpisodeRules) if f.name not in ("make", "options")}


def episode_rules(given: str | Mapping[str, Any]) -> EpisodeRules:
    """`environment` of a recipe: a name, or a mapping of `name`, `turns`, ... and the environment's own options.

    Raises:
        ValueError: for an unknown name or option, a value that is no positive number, or options that the class refuses.
    """
    given = {"name": given} if isinstance(given, str) else dict(given)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("environment has no name: write {name: guess, turns: 5}.")
    cls = environment_class(name)
    takes = {*options_of(cls), *OWN}
    for key in given:
        if key not in takes:
            hint = did_you_mean(str(key), takes)
            raise ValueError(f"environment {name!r} has no option {key!r}.{hint} It takes {', '.join(sorted(takes))}.")
    own = {key: given.pop(key) for key in OWN if key in given}
    if own.get("credit", "episode") not in ("episode", "turn"):
        raise ValueError(f"environment: credit is {own['credit']!r}: write episode or turn.")
    for key, value in own.items():
        if key == "credit":
            continue
        number = isinstance(value, int if key != "step_timeout" else int | float) and not isinstance(value, bool)
        if not (number and value > 0) and not (key == "turn_tokens" and value is None):
            raise ValueError(f"environment: {key} is {value!r}: write a number above 0.")
    try:
        cls(**given)
    except Exception as error:  # whatever a user's class raises
        raise ValueError(f"environment {name!r} does not take these options: {error}") from error
    return EpisodeRules(cls, given, **own)
