"""Recipe keys for multi-turn episodes, and their rules; see `docs/several-turns.md`."""

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

# Values that environments require, because TRL cannot play their episodes.
NEEDED = STEP_NORMALIZATION | {"use_transformers_continuous_batching": (False,)}

# Values that `credit: turn` requires; the last two, because the signal is that of whole episodes.
WITH_CREDIT_BY_TURN = {
    "multi_objective_aggregation": SUM_THEN_NORMALIZE,
    "group_filter": "off",
    "advantage_normalizer": "all",
}


@dataclass
class EpisodeOptions:
    """Recipe keys for episodes; a base of `GRPOExtConfig`.

    Args:
        environment (`dict` or `str`, *optional*): the environment that replies to the model: its
            name, or a mapping with options, such as `{name: guess, high: 31, turns: 5}`. Every
            environment has these options: `turns`, the maximum number of turns per episode (8);
            `turn_tokens`, the maximum number of tokens per turn (no limit); `step_timeout`, the
            time limit for a reply (10 seconds); `answer_characters`, the maximum length of a reply
            (10,000); `credit`, whether advantages are computed per `"episode"` (default) or per
            `"turn"`; `threads`, the number of threads for code that is not async (by default, such
            code runs in the main thread). `on_failure` says what happens to an episode whose
            environment fails: with `"mask"` (default), it is neither scored nor trained on; with
            `"train"`, the model gets the error as the reply; with `"retry"`, it is played again.
            The run stops if more than `max_failure_rate` (0.5) of the last 256 calls of a method
            failed (once there were 64 calls), or if all of its calls in a generation failed;
            `max_failure_rate: 1` prevents both.
            `max_completion_length` limits the whole episode, including the replies. If `None`, a
            completion is a single turn.
        environments (`dict`, *optional*): several environments by name, in place of `environment`.
            Each row names its environment in the column `environment`; a row with `None` there is
            completed in a single turn. If the mapping of an environment has no `name`, its
            key in `environments` is the name.
    """

    environment: dict | str | None = None
    environments: dict[str, dict[str, Any] | str | None] | None = None


def environments_of(v: Any) -> dict[str, EnvironmentSpec]:
    """Return the environments of a recipe, or of training arguments, by name.

    The environment in the key `environment`, which is for all rows, has the name "". An environment
    in an entry of `tasks` has the name of the entry. In `environments`, a mapping without `name`
    gets its key as the `name`. If several keys set environments, only the first counts, in the
    order `environment`, `environments`, `tasks`.

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
    """Return the value of `tasks`, or `None` if `v` does not set this key or has no such field."""
    if isinstance(v, Values) and v.has("tasks"):
        return v.tasks
    return None


def environments_of_tasks(
    tasks: Mapping[str, Mapping[str, Any] | None] | None,
) -> dict[str, EnvironmentSpec]:
    """Return the environment of each entry of `tasks` that sets one, by the entry's name."""
    environments = {}
    for task, entry in (tasks or {}).items():
        if entry and entry.get("environment") is not None:
            environments[task] = entry["environment"]
    return environments


def all_rules(v: Values) -> Iterator[EpisodeRules | Problem]:
    """Yield the `EpisodeRules` of each valid environment, and a problem for each invalid one."""
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
    """Yield problems if several keys set environments, or `environments` has invalid names.

    The keys are `environment`, `environments`, and `environment` in the entries of `tasks`. A name
    is invalid if it is empty or `SINGLE_TURN`. An empty `environments` is a problem, too.
    """
    given = [key for key in ("environment", "environments") if v[key] is not None]
    if environments_of_tasks(entries_of(v)):
        given.append("tasks")
    if len(given) > 1:
        yield Problem(
            f"`{given[0]}` and `{given[1]}` both set environments. Keep only one: `environment` "
            "(for all rows), `environments` (for rows with a column `environment`), or the key "
            "`environment` in the entries of `tasks` (for the rows of that task).",
            given[0],
        )
    if v.environments is not None and not v.environments:
        yield Problem(
            "environments is empty. Add at least one environment, or remove the key.",
            "environments",
        )
    for name in v.environments or {}:
        if name == "":
            yield Problem(
                "environments: a name is empty. Set a name, here and in the column `environment`.",
                "environments",
            )
        if name == SINGLE_TURN:
            yield Problem(
                f"environments: {name!r} cannot be the name of an environment, because it marks "
                "rows that have none. Rename it, here and in the column `environment`.",
                "environments",
            )


def environments_that_do_not_fit(v: Values, _: int) -> Iterator[Problem]:
    """Yield problems for invalid environments and for keys that conflict with environments."""
    credits = set()
    for rules in all_rules(v):
        if isinstance(rules, Problem):
            yield rules
        else:
            credits.add(rules.credit)
            if rules.credit == "turn" and rules.name.startswith("verifiers:"):
                yield Problem(
                    f"{rules.name}: `credit: turn` needs the score after each turn, but the rubric "
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
                "environment: `credit: turn` requires advantages that depend only on the rewards "
                f"in a completion's own group, but with `scale_rewards: {v.scale_rewards}` they "
                "also depend on other groups. Set `scale_rewards: group`.",
                "scale_rewards",
            )
        for key, value in WITH_CREDIT_BY_TURN.items():
            if v[key] != value:
                yield Problem(f"environment: `credit: turn` needs `{key}: {in_yaml(value)}`.", key)
    if v.curriculum == "adaptive":
        yield Problem(
            "environment: `curriculum: adaptive` tracks pass rates per prompt, but with different "
            "seeds, episodes of the same prompt are different problems. Set `curriculum: none`.",
            "curriculum",
        )
    if v.pass_rates_file:
        yield Problem(
            "environment: pass_rates_file has pass rates per prompt, but with different seeds, "
            "episodes of the same prompt are different problems. Remove pass_rates_file.",
            "pass_rates_file",
        )
    yield from ends_that_turns_cannot_have(v)


def ends_that_turns_cannot_have(v: Any) -> Iterator[Problem]:
    """Yield a problem for each option in `generation_kwargs` that would end turns in other ways.

    These are the options in `TURN_ENDS` and, unless the training process samples with
    transformers, `stop_strings`.

    Args:
        v: the values of a recipe, or the training arguments.
    """
    options = v.generation_kwargs or {}
    for key in sorted(TURN_ENDS & {*options}):
        yield Problem(
            "environment: a turn ends only at an end token, after turn_tokens tokens or, unless "
            f"use_vllm or sampler is set, at stop_strings, so {key} cannot end it. Remove {key} "
            "from generation_kwargs.",
            "generation_kwargs",
        )
    engines = [key for key in ("use_vllm", "sampler") if getattr(v, key)]
    if options.get("stop_strings") and engines:
        yield Problem(
            "environment: stop_strings can end turns only when the training process samples with "
            f"transformers. Remove {' and '.join(engines)}, or remove stop_strings from "
            "generation_kwargs.",
            "generation_kwargs",
        )


@refuses(
    "max_completion_length",
    "`max_completion_length: null` leaves episodes in environments without a limit. Set "
    "max_completion_length to a number.",
)
def episodes_without_a_length(v: Values) -> bool:
    return v.max_completion_length is None and v.use_vllm and bool(environments_of(v))


def environments_of_tasks_that_trl_would_play(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each value that conflicts with an environment in an entry of `tasks`.

    Such an environment has the same requirements as the key `environment`, listed in `NEEDED`.
    """
    if not environments_of_tasks(entries_of(v)):
        return
    for key, fitting in NEEDED.items():
        if v[key] not in fitting:
            yield Problem(
                "tasks: if an entry has an `environment`, the recipe must set "
                f"`{key}: {in_yaml(fitting[0])}`.",
                "tasks",
            )


RULES: tuple[Rule, ...] = (
    Dependency("environment", (None,), NEEDED),
    Dependency("environments", (None,), NEEDED),
    environments_of_tasks_that_trl_would_play,
    environments_named_twice,
    environments_that_do_not_fit,
    episodes_without_a_length,
)
