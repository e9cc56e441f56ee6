"""Parse `environment` in a recipe: the class, its options and the limits of an episode."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, PositiveFloat, PositiveInt

from grpo_ext.common.stopwatch import Stopwatch
from grpo_ext.common.suggestions import did_you_mean, unknown
from grpo_ext.environments.background import ThreadPool
from grpo_ext.environments.base import Environment, environment_class
from grpo_ext.environments.failures import EnvironmentFailures
from grpo_ext.environments.open_environments import add_open
from grpo_ext.environments.tools import ToolEnvironment, checked_tools
from grpo_ext.rewards.scores import in_full
from grpo_ext.rewards.signature import misfit

COLUMNS = ("environment", "turns")


@dataclass(frozen=True)
class EpisodeRules:
    """The rules for episodes: how to create their environment, and which limits apply."""

    make: Callable[[], Environment]  #: creates an environment
    turns: PositiveInt = 8  #: maximum number of the model's turns in an episode
    #: maximum number of tokens in a turn; `None` allows as many as the episode has left
    turn_tokens: PositiveInt | None = None
    #: whether all turns share one advantage, or each has its own
    credit: Literal["episode", "turn"] = "episode"
    #: The run ends if more than this share of a method's last 256 calls failed, once there were 64
    #: calls, or if all of its calls in a generation failed (see `refuse_many`). With 1, failures
    #: never end the run.
    max_failure_rate: Annotated[float, Field(ge=0, le=1)] = 0.5
    #: What happens to an episode whose environment fails. With "mask", the episode is neither
    #: scored nor trained on; with "train", the model receives the error as the answer; with
    #: "retry", the episode is replayed from its seed.
    on_failure: Literal["mask", "train", "retry"] = "mask"
    step_timeout: PositiveFloat = 10.0  #: time limit for each environment answer, in seconds
    answer_characters: PositiveInt = 10_000  #: maximum length of an answer; the rest is cut off
    #: number of threads for synchronous code; if `None`, it runs in the main thread, one call after
    #: another
    threads: PositiveInt | None = None
    columns: tuple[str, ...] = COLUMNS  #: columns that an episode adds for the rewards
    name: str = ""  #: name of the environment in messages
    single_turn: bool = False  #: whether these rows have no environment while other rows do
    label: str = ""  #: name of its entry in `environments`; empty if all rows have this environment

    @cached_property
    def probe(self) -> Environment:
        """An environment that plays no episode.

        It is created once, to check that the class can be instantiated, and to list its tools.
        """
        probe = self.make()
        add_open(probe, self, lasting=True)
        return probe

    def new_environment(self) -> Environment:
        """Create an environment for an episode; `close_played` closes it."""
        environment = self.make()
        add_open(environment, self)
        return environment

    @cached_property
    def failures(self) -> EnvironmentFailures:
        """The failure counts over all episodes with these rules in this process."""
        name = self.name
        if self.label not in ("", name):
            name = f"{self.label} ({name})"
        return EnvironmentFailures(name, self.max_failure_rate, self.on_failure)

    @cached_property
    def thread_pool(self) -> ThreadPool | None:
        """The threads for all episodes with these rules; `None` if `threads` is `None`."""
        return ThreadPool(self.threads) if self.threads else None

    @cached_property
    def stopwatch(self) -> Stopwatch:
        """A stopwatch for the time spent only on running or awaiting the environments' code."""
        return Stopwatch()


# The keys that every environment of a recipe may have, with their types.
RULE_TYPES = get_type_hints(EpisodeRules, include_extras=True)
for key in ("make", "columns", "name", "label", "single_turn"):
    del RULE_TYPES[key]


def episode_rules(environment: str | Mapping[str, Any], label: str = "") -> EpisodeRules:
    """Return the episode rules for the `environment` of a recipe.

    One environment, the `probe` of the rules, is created as a check.

    Args:
        environment: a name, or a mapping with `name`, keys of `RULE_TYPES`, and options of the
            environment's class.
        label: the name of the environment's entry in `environments`; empty if all rows have this
            environment.

    Raises:
        ValueError: if the name is missing or unknown, an option is unknown, or a value is invalid;
            if the class cannot be imported, cannot be created with the options, or has an option
            with the name of a key of `RULE_TYPES`; or if the environment cannot answer the model
            (see `check_answers`).
    """
    if isinstance(environment, str):
        environment = {"name": environment}
    settings = dict(environment)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(
            "environment needs a `name`, which must be a string, as in {name: guess, turns: 5}."
        )
    cls = environment_class(name)
    option_names = set()
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            option_names.add(parameter.name)
    clashes = sorted(RULE_TYPES.keys() & option_names)
    if clashes:
        raise ValueError(
            f"environment {name!r} has an option {clashes[0]!r}, but every environment has a key "
            "of that name. Rename the parameter of the class."
        )
    rules: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in settings.items():
        if key in option_names:
            options[key] = value
        elif key not in RULE_TYPES:
            keys = RULE_TYPES.keys() | option_names
            raise ValueError(f"environment {name!r}: {unknown('option', str(key), keys)}")
        else:
            fault = misfit(value, RULE_TYPES[key])
            if fault:
                raise ValueError(f"environment: {key} is {value!r}: {fault}.")
            rules[key] = value

    def make() -> Environment:
        instance = cls(**options)
        return instance if isinstance(instance, Environment) else ToolEnvironment(instance=instance)

    episode_rules = EpisodeRules(make, name=name, label=label, **rules)
    try:
        probe = episode_rules.probe
    except ValueError as error:
        raise ValueError(
            f"environment {name!r} cannot be created with its options: {error}"
        ) from error
    except Exception as error:  # raised by a user's class
        reason = in_full(error).splitlines()[-1]
        raise ValueError(
            f"environment {name!r} cannot be created with its options: {reason}"
        ) from error
    check_answers(name, probe)
    return episode_rules


def answers_texts(environment: Environment) -> bool:
    """Return whether an environment defines its own `step`, which answers turns without a call."""
    return type(environment).step not in (Environment.step, ToolEnvironment.step)


def check_answers(name: str, environment: Environment) -> None:
    """Check that an environment can answer the model, with `step` or with tools.

    Only a `ToolEnvironment`, which wraps classes written for TRL, may have neither; its episodes
    then have a single turn.

    Args:
        name: the environment's name in messages.
        environment: an instance of the environment.

    Raises:
        ValueError: if `tools` raises an error or returns something other than functions, or if the
            environment has neither `step` nor tools and is not a `ToolEnvironment`.
    """
    try:
        tools = checked_tools(environment.tools())
    except Exception as error:  # raised by a user's class
        reason = in_full(error, environment.tools).splitlines()[-1]
        raise ValueError(f"environment {name!r}: its method `tools` failed: {reason}") from error
    if tools or answers_texts(environment) or isinstance(environment, ToolEnvironment):
        return
    own_attributes = set(dir(environment)) - set(dir(Environment))
    hint = did_you_mean("step", own_attributes)
    raise ValueError(
        f"environment {name!r} has neither `step` nor tools, so nothing answers the model.{hint} "
        "Define `step(self, text)`, which returns the answer and whether the episode is over."
    )
