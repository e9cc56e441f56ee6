"""The recipe keys for multi-turn episodes; see `docs/several-turns.md`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.columns import SINGLE_TURN
from grpo_ext.environments.episode_rules import EpisodeRules, episode_rules
from grpo_ext.objective.advantage import SUM_THEN_NORMALIZE
from grpo_ext.recipe.advantage_options import compares_groups
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Rule, in_yaml, refuses
from grpo_ext.recipe.typed_values import Values

# a name, or a mapping with `name`, limits and options of the environment
EnvironmentSpec = str | Mapping[str, Any]

# keys of `generation_kwargs` that would end turns in other ways
TURN_ENDS = {"stop", "stop_token_ids", "max_tokens", "max_new_tokens", "max_time"}

# Values that environments need, because TRL cannot play their episodes.
NEEDED = STEP_NORMALIZATION | {"use_transformers_continuous_batching": (False,)}

# Values that `credit: turn` needs; the last two because signal is judged for whole episodes.
WITH_CREDIT_BY_TURN = {
    "multi_objective_aggregation": SUM_THEN_NORMALIZE,
    "group_filter": "off",
    "advantage_normalizer": "all",
}


@dataclass
class EpisodeOptions:
    """The recipe keys for episodes; a base of `GRPOExtConfig`.

    Args:
        environment (`dict` or `str`, *optional*): the environment that replies to the model: its
            name, or a mapping with options, such as `{name: guess, high: 31, turns: 5}`. Every
            environment has the limits `turns` per episode (8), `turn_tokens` per turn, and
            `step_timeout` (10 seconds) and `answer_characters` (10,000) per reply, and the options
            `credit` (`"episode"` or `"turn"`) and `threads` (the number of threads that run code
            that is not async; by default it runs in the main thread). An episode whose environment
            fails is left out, trained on, or played again (`on_failure`: `"mask"`, the default,
            `"train"` or `"retry"`). The run stops if more than `max_failure_rate` (0.5) of the last
            256 calls of a method failed, or all of its calls in a step; 1: never.
            `max_completion_length` limits the whole episode, including the replies. `None`: a
            completion is a single turn.
        environments (`dict`, *optional*): several environments by name, in place of `environment`.
            Each row names its environment in the column `environment`; a row with `None` there is
            completed in a single turn. If the mapping of an environment has no `name`, its key in
            `environments` is the name.
    """

    environment: dict | str | None = None
    environments: dict[str, dict[str, Any] | str | None] | None = None


def environments_of(v: Any) -> dict[str, EnvironmentSpec]:
    """Return the environments of a recipe, or of the training arguments, by name.

    An environment for all rows has the name "". With `tasks`, an entry's environment has the name
    of the entry.

    Args:
        v: the values of a recipe, or training arguments, which have no `tasks`.
    """
    if v.environment is not None:
        return {"": v.environment}
    environments: dict[str, EnvironmentSpec] = {}
    for name, given in (v.environments or {}).items():
        if isinstance(given, str):
            environments[name] = given
        else:
            environments[name] = {"name": name, **(given or {})}
    return environments or environments_of_tasks(entries_of(v))


def entries_of(v: Any) -> Mapping[str, Mapping[str, Any] | None] | None:
    """Return the entries of `tasks`; `None` if there are none, as in training arguments."""
    if isinstance(v, Values) and v.has("tasks"):
        return v.tasks
    return None


def environments_of_tasks(
    tasks: Mapping[str, Mapping[str, Any] | None] | None,
) -> dict[str, EnvironmentSpec]:
    """Return the environments that entries of `tasks` set, by the name of the entry."""
    environments = {}
    for task, entry in (tasks or {}).items():
        if entry and entry.get("environment") is not None:
            environments[task] = entry["environment"]
    return environments


def all_rules(v: Values) -> Iterator[EpisodeRules | Problem]:
    """Yield the rules of each environment of a recipe, or a problem for an invalid environment."""
    of_tasks = environments_of_tasks(entries_of(v))
    for name, environment in environments_of(v).items():
        key = "environment"
        place = ""
        if name:
            key = "tasks" if name in of_tasks else "environments"
            place = f"{key}: {name}: "
        try:
            yield episode_rules(environment, name)
        except ValueError as error:
            yield Problem(f"{place}{error}", key)


def environments_named_twice(v: Values, _: int) -> Iterator[Problem]:
    """Only one key may set the environment of a row, and `environments` needs valid entries."""
    given = [key for key in ("environment", "environments") if v[key] is not None]
    if environments_of_tasks(entries_of(v)):
        given.append("tasks")
    if len(given) > 1:
        yield Problem(
            f"{given[0]} and {given[1]} both say which environment a row has. Remove one: "
            "`environment` is for all rows, `environments` for rows with a column `environment`, "
            "and an entry of `tasks` for the rows of that task.",
            given[0],
        )
    if v.environments is not None and not v.environments:
        yield Problem(
            "environments is empty. Write at least one environment, or remove the key.",
            "environments",
        )
    for name in v.environments or {}:
        if name == "":
            yield Problem(
                "environments: a name is empty. Write a name, here and in the column "
                "`environment`.",
                "environments",
            )
        if name == SINGLE_TURN:
            yield Problem(
                f"environments: {name!r} cannot be the name of an environment, because it marks "
                "rows that have none. Rename it, here and in the column `environment`.",
                "environments",
            )


def environments_that_do_not_fit(v: Values, _: int) -> Iterator[Problem]:
    """Environments must be known, accept their options and not conflict with other keys."""
    credits = set()
    for rules in all_rules(v):
        if isinstance(rules, Problem):
            yield rules
        else:
            credits.add(rules.credit)
            if rules.credit == "turn" and rules.name.startswith("verifiers:"):
                yield Problem(
                    f"{rules.name}: `credit: turn` reads the score after each turn, but the rubric "
                    "of verifiers scores an episode only once, at its end. Set "
                    "`credit: episode`.",
                    "environment",
                )
    if not environments_of(v):
        return
    if "turn" in credits:
        if v.tie_break_reward is not None:
            yield Problem(
                "environment: `credit: turn` compares the rewards-to-go of turns, but "
                "tie_break_reward compares whole episodes. Remove tie_break_reward.",
                "tie_break_reward",
            )
        if compares_groups(v):
            yield Problem(
                "environment: `credit: turn` compares turns within a group, but "
                f"`scale_rewards: {v.scale_rewards}` compares groups with each other. Set "
                "`scale_rewards: group`.",
                "scale_rewards",
            )
        for key, value in WITH_CREDIT_BY_TURN.items():
            if v[key] != value:
                yield Problem(f"environment: `credit: turn` needs `{key}: {in_yaml(value)}`.", key)
    if v.curriculum == "adaptive":
        yield Problem(
            "environment: `curriculum: adaptive` tracks pass rates per prompt, but episodes of the "
            "same prompt differ by their seed. Set `curriculum: none`.",
            "curriculum",
        )
    if v.pass_rates_file:
        yield Problem(
            "environment: pass_rates_file has pass rates per prompt, but episodes of the same "
            "prompt differ by their seed. Remove pass_rates_file.",
            "pass_rates_file",
        )
    yield from ends_that_turns_cannot_have(v)


def ends_that_turns_cannot_have(v: Any) -> Iterator[Problem]:
    """Yield a problem for each key of `generation_kwargs` that cannot end a turn.

    Args:
        v: the values of a recipe, or the training arguments.
    """
    options = v.generation_kwargs or {}
    for key in sorted(TURN_ENDS & {*options}):
        yield Problem(
            f"environment: a turn ends at an end token or after turn_tokens tokens, so {key} "
            f"cannot end it. Remove {key} from generation_kwargs. Where transformers samples, "
            "stop_strings can end a turn, too.",
            "generation_kwargs",
        )
    engines = [key for key in ("use_vllm", "sampler") if getattr(v, key)]
    if options.get("stop_strings") and engines:
        yield Problem(
            "environment: stop_strings can end turns only if transformers samples in the training "
            f"process. Remove {' and '.join(engines)}, or remove stop_strings from "
            "generation_kwargs.",
            "generation_kwargs",
        )


@refuses(
    "max_completion_length",
    "`max_completion_length: null` leaves episodes in environments without a limit. Write a "
    "number.",
)
def episodes_without_a_length(v: Values) -> bool:
    return v.max_completion_length is None and v.use_vllm and bool(environments_of(v))


def environments_of_tasks_that_trl_would_play(v: Values, _: int) -> Iterator[Problem]:
    """An entry of `tasks` with an environment needs the values that `environment` needs."""
    if not environments_of_tasks(entries_of(v)):
        return
    for key, fitting in NEEDED.items():
        if v[key] not in fitting:
            yield Problem(
                f"tasks: an entry with `environment` needs `{key}: {in_yaml(fitting[0])}`.", "tasks"
            )


RULES: tuple[Rule, ...] = (
    Dependency("environment", (None,), NEEDED),
    Dependency("environments", (None,), NEEDED),
    environments_of_tasks_that_trl_would_play,
    environments_named_twice,
    environments_that_do_not_fit,
    episodes_without_a_length,
)
