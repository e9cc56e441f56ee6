"""The rules of episodes, from `environment` in a recipe: the environment with its options, and the
limits of an episode.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, PositiveFloat, PositiveInt

from grpo_ext.common.suggestions import did_you_mean, unknown
from grpo_ext.environments.base import Environment, environment_class
from grpo_ext.environments.failures import EnvironmentFailures
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.rewards.scores import in_full
from grpo_ext.rewards.signature import misfit

COLUMNS = ("environment", "turns")


@dataclass(frozen=True)
class EpisodeRules:
    """How episodes are played."""

    make: Callable[[], Environment]  #: makes an environment
    turns: PositiveInt = 8  #: most turns of the model in an episode
    turn_tokens: PositiveInt | None = (
        None  #: most tokens of a turn. `None`: as many as the episode has left
    )
    credit: Literal["episode", "turn"] = (
        "episode"  #: whether all turns share one advantage, or each has its own
    )
    #: share of failures, of the last 256 turns, above which the run ends; 1 for never
    max_failure_rate: Annotated[float, Field(ge=0, le=1)] = 0.5
    step_timeout: PositiveFloat = 10.0  #: seconds that the environment may take for an answer
    answer_characters: PositiveInt = 10_000  #: most characters of an answer; the rest is cut off
    columns: tuple[str, ...] = COLUMNS  #: columns of an episode that rewards may read
    name: str = ""  #: of the environment in messages

    @cached_property
    def probe(self) -> Environment:
        """An environment that plays no episode. It shows whether one can be made and which tools it
        has.
        """
        return self.make()

    @cached_property
    def failures(self) -> EnvironmentFailures:
        """The failures in all episodes with these rules."""
        return EnvironmentFailures(self.name, self.max_failure_rate)


OWN = {
    key: hint
    for key, hint in get_type_hints(EpisodeRules, include_extras=True).items()
    if key not in ("make", "columns", "name")
}


def episode_rules(given: str | Mapping[str, Any]) -> EpisodeRules:
    """Return the rules for `environment` of a recipe: a name, or a mapping of `name`, keys of `OWN`
    and the class's options.

    `ValueError` for an unknown name or option, a value out of range, or options that the class
    refuses.
    """
    given = {"name": given} if isinstance(given, str) else dict(given)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ValueError("environment has no name: write {name: guess, turns: 5}.")
    cls = environment_class(name)
    parameters = inspect.signature(cls).parameters.values()
    options = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    if clash := sorted(OWN.keys() & options):
        raise ValueError(
            f"environment {name!r} has an option {clash[0]!r}, which is a key of every "
            "environment: rename it."
        )
    takes = OWN.keys() | options
    for key in given:
        if key not in takes:
            raise ValueError(f"environment {name!r}: {unknown('option', str(key), takes)}")
    own = {key: given.pop(key) for key in list(given) if key in OWN}
    for key, value in own.items():
        if wrong := misfit(value, OWN[key]):
            raise ValueError(f"environment: {key} is {value!r}: {wrong}.")

    def make() -> Environment:
        made = cls(**given)
        return made if isinstance(made, Environment) else ToolEnvironment(instance=made)

    rules = EpisodeRules(make, name=name, **own)
    try:
        rules.probe  # noqa: B018 - makes the first environment
    except Exception as error:  # of a user's class
        why = error if isinstance(error, ValueError) else in_full(error).splitlines()[-1]
        raise ValueError(f"environment {name!r} does not take these options: {why}") from error
    check_answers(name, rules.probe)
    return rules


def answers_texts(environment: Environment) -> bool:
    """Return whether an environment answers turns without a call, by a `step` of its own."""
    return type(environment).step not in (Environment.step, ToolEnvironment.step)


def check_answers(name: str, environment: Environment) -> None:
    """Raise `ValueError` if `tools` fails, or if an environment without `step` has none, so that
    nothing answers the model.
    """
    try:
        tools = list(environment.tools())
    except Exception as error:  # of a user's class
        why = in_full(error).splitlines()[-1]
        raise ValueError(f"environment {name!r}: its method tools fails: {why}") from error
    if (
        not tools
        and not answers_texts(environment)
        and not isinstance(environment, ToolEnvironment)
    ):
        near = did_you_mean("step", {*dir(environment)} - {*dir(Environment)})
        raise ValueError(
            f"environment {name!r} has neither `step` nor tools, so nothing answers the "
            f"model.{near} Write `def step(self, text)` that returns an answer and whether the "
            "episode is over."
        )
