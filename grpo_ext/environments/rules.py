"""What a recipe says of its environment: which one, its options, and how long an episode may be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import isfinite
from typing import Any

from grpo_ext.common.near import did_you_mean
from grpo_ext.environments.base import Environment, environment_class, options_of
from grpo_ext.environments.tools import ToolEnvironment

COLUMNS = ("environment", "turns")


@dataclass(frozen=True)
class EpisodeRules:
    """How episodes are played.

    Args:
        make: makes an environment.
        turns: the model's turns of an episode, at most.
        turn_tokens: tokens of a turn, at most; `None`: as many as the episode has left.
        credit: "episode": all turns have the advantage of the whole; "turn": each has its own, from what the episode still
            earns from that turn on.
        step_timeout: seconds that the environment may take for an answer.
        answer_characters: of an answer, at most; the rest of it is cut off.
        columns: what rewards may read of an episode.
    """

    make: Callable[[], Environment]
    turns: int = 8
    turn_tokens: int | None = None
    credit: str = "episode"
    step_timeout: float = 10.0
    answer_characters: int = 10_000
    columns: tuple[str, ...] = COLUMNS

    @cached_property
    def probe(self) -> Environment:
        """An environment that plays no episode, which says whether one can be made and which tools it has."""
        return self.make()


OWN = {f.name for f in fields(EpisodeRules)} - {"make", "columns"}


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
    if clash := sorted(OWN & options_of(cls).keys()):
        raise ValueError(f"environment {name!r} has an option {clash[0]!r}, which is a key of every environment: rename it.")
    takes = OWN | options_of(cls).keys()
    for key in given:
        if key not in takes:
            hint = did_you_mean(str(key), takes)
            raise ValueError(f"environment {name!r} has no option {key!r}.{hint} It takes {', '.join(sorted(takes))}.")
    own = {key: given.pop(key) for key in list(given) if key in OWN}
    for key, value in own.items():
        if not _fits(key, value):
            wanted = "episode or turn" if key == "credit" else "a number above 0"
            raise ValueError(f"environment: {key} is {value!r}: write {wanted}.")

    def make() -> Environment:
        made = cls(**given)
        return made if isinstance(made, Environment) else ToolEnvironment(instance=made)

    rules = EpisodeRules(make, **own)
    try:
        rules.probe  # noqa: B018 - made here for the first time
    except Exception as error:  # whatever a user's class raises
        raise ValueError(f"environment {name!r} does not take these options: {error}") from error
    return rules


def _fits(key: str, value: Any) -> bool:
    if key == "credit":
        return value in ("episode", "turn")
    whole = isinstance(value, int) and not isinstance(value, bool)
    number = whole or (key == "step_timeout" and isinstance(value, float) and isfinite(value))
    return (number and value > 0) or (key == "turn_tokens" and value is None)
