"""Options for groups and for choosing prompts, and their rules; see `docs/groups.md`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.recipe.advantage_options import WEIGHTED_SUM
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Idle, Rule, refuses
from grpo_ext.recipe.several_tasks import metric_of, read_tasks, reward_specs
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import Count, CountOrZero, Positive, Share
from grpo_ext.tasks import task_classes


@dataclass
class GroupOptions:
    """Recipe keys for groups; a base of `GRPOExtConfig`.

    Args:
        group_filter (`str`, defaults to `"off"`): what happens to a group without signal. A
            group has signal if the reward `group_filter_metric` varies in it. `"off"`: the group is
            trained on; its advantages are 0 if no other reward varies in it. `"drop"`: the group is
            left out, and the loss is divided by the counts of the remaining groups. `"refill"`:
            completions of further prompts are generated until the step has its full number of
            groups with signal.
        group_filter_metric (`str`, *optional*): the reward that judges groups, that is, decides
            which have signal, and which completions are correct for pass rates and pass@k. If
            `None`, it is the reward with the largest weight or, among equal weights, the first. The
            weighted sum is never used, because a format reward can make it vary where all answers
            are wrong. A group that this reward does not score is judged by the reward with the next
            largest weight that scores it.
        group_filter_max_rounds (`int`, defaults to 4): the maximum number of additional generations
            per step with `group_filter: refill`. If groups are still missing after these, the step
            trains on the groups that it has.
        max_staleness (`int`, defaults to 1): the maximum number of optimizer steps for which a
            surplus group of `group_filter: refill` is kept. A later step trains on it with the
            log-probs of the policy that sampled it. If 0, no surplus groups are generated.
        tie_break_reward (`str`, *optional*): the reward, of weight 0, that decides groups in which
            every completion passes and the weighted rewards are equal. The advantages for this
            reward, computed with the same `scale_rewards` and `std_estimator` and multiplied by
            `tie_break_coef`, become those of the group, which then has signal. If `None`, such a
            group has no signal.
        tie_break_coef (`float`, defaults to 0.1): the factor for the advantages of
            `tie_break_reward`. At 1, a group decided by that reward has as much weight as a group
            of correct and wrong completions.
        pass_threshold (`float`, defaults to 1.0): the lowest reward with which a completion counts
            as correct; pass@k always uses 1.
        curriculum (`str`, defaults to `"none"`): how prompts are chosen. `"none"`: in a new random
            order in each epoch, or in the order of the rows with `shuffle_dataset: false`.
            `"adaptive"`: by drawing without replacement, weighted by the probability that a group
            has both correct and wrong completions, 1 - p^G - (1-p)^G for a pass rate p; a tenth of
            the weight is uniform, so that any prompt can be drawn. This changes the objective, in
            which prompts with such groups get more weight. `"easy_to_hard"`: in ascending order of
            `difficulty_column`, once over the whole run.
        difficulty_column (`str`, *optional*): the column by which `curriculum: easy_to_hard` sorts
            the training rows.
        pass_rates_file (`str`, *optional*): a file of completions, from which the initial pass
            rates of prompts are computed with `group_filter_metric` and `pass_threshold`. Use the
            `samples.jsonl` of a run, or a file that `grpo-ext eval --train_rows` has written.
        pass_rate_decay (`float`, defaults to 0.5): the weight of a prompt's earlier completions in
            its pass rate, relative to those of its newest group.
        max_slots_per_prompt (`int`, defaults to 1): with `curriculum: adaptive`, the maximum number
            of slots for a prompt in a generation, where a slot has `num_generations` completions. A
            prompt gets the smallest number of slots for which its pass rate predicts one correct
            completion, and all its slots form one group. The number of completions per generation
            stays the same.
    """

    group_filter: Literal["off", "drop", "refill"] = "off"
    group_filter_metric: str | None = None
    group_filter_max_rounds: Count = 4
    max_staleness: CountOrZero = 1
    tie_break_reward: str | None = None
    tie_break_coef: Positive = 0.1
    pass_threshold: float = 1.0
    curriculum: Literal["none", "adaptive", "easy_to_hard"] = "none"
    difficulty_column: str | None = None
    pass_rates_file: str | None = None
    pass_rate_decay: Share = 0.5
    max_slots_per_prompt: Count = 1


@refuses(
    "curriculum",
    "`curriculum: {curriculum}` needs all rows before training begins. Remove dataset_streaming.",
)
def curriculum_of_a_stream(v: Values) -> bool:
    return v.curriculum != "none" and v.dataset_streaming


@refuses(
    "curriculum",
    "`curriculum: easy_to_hard` needs difficulty_column. Set it to the name of a numeric column "
    "that says how hard each row is.",
)
def order_without_a_difficulty(v: Values) -> bool:
    return v.curriculum == "easy_to_hard" and not v.difficulty_column


@refuses(
    "pass_rates_file",
    "pass_rates_file: there is no file {pass_rates_file}. Correct the path, or remove "
    "pass_rates_file until `grpo-ext eval --train_rows N --output rates.json` has written "
    "rates_completions.jsonl.",
)
def missing_pass_rates(v: Values) -> bool:
    path = v.pass_rates_file
    return path is not None and not Path(path).expanduser().is_file()


@refuses(
    "reward_weights",
    "reward_weights needs reward_funcs, the list of rewards that the weights belong to. Set "
    "reward_funcs, or remove reward_weights.",
)
def weights_without_rewards(v: Values) -> bool:
    # with `tasks`, `several_tasks.keys_of_a_single_task` rejects both keys
    return v.reward_weights is not None and v.reward_funcs is None and v.tasks is None


def unknown_group_metric(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `group_filter_metric` is not one of the recipe's rewards."""
    metric = v.group_filter_metric
    names = list(reward_weights_of(v))
    if names and metric is not None and metric not in names:
        yield Problem(
            f"group_filter_metric: this recipe has no reward {metric!r}. Its rewards are "
            f"{', '.join(names)}.{did_you_mean(metric, names)}",
            "group_filter_metric",
        )


def reward_that_cannot_break_ties(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `tie_break_reward` is unknown, has a nonzero weight, or judges groups."""
    name = v.tie_break_reward
    weights = reward_weights_of(v)
    if name is None or not weights:
        return
    outcome = v.group_filter_metric or max(weights, key=lambda reward: weights[reward])
    if fault := tie_break_fault(name, weights, outcome):
        yield Problem(fault, "tie_break_reward")


def tie_break_fault(name: str, weights: Mapping[str, float], outcome: str) -> str | None:
    """Return an error message if a reward cannot break ties, or `None` if it can.

    Args:
        name: the value of `tie_break_reward`.
        weights: the weights of all rewards by name.
        outcome: the name of the reward that judges groups.
    """
    if name not in weights:
        hint = did_you_mean(name, weights)
        return (
            f"tie_break_reward: there is no reward {name!r}. The rewards are "
            f"{', '.join(weights)}.{hint}"
        )
    if weights[name] != 0:
        return (
            f"`tie_break_reward: {name}` has weight {weights[name]:g} in the sum of the rewards, "
            "so it cannot break ties. Give it the weight 0 in reward_weights, or, in a recipe "
            "without reward_weights, in reward_funcs."
        )
    if name == outcome:
        return (
            f"`tie_break_reward: {name}` also decides which completions are correct. Set "
            "tie_break_reward or group_filter_metric to another reward."
        )
    return None


def reward_weights_of(v: Values) -> dict[str, float]:
    """Return the weight of each reward of a recipe, by the reward's name.

    Without `reward_funcs` and `tasks`, the rewards are the default ones of the task; the result is
    empty for an unknown task. If `reward_weights` has the wrong length, every weight is 1.
    """
    task = task_classes().get(v.task)
    specs: list[Any] = []
    if v.tasks:
        specs = list(reward_specs(read_tasks(v.tasks)[0]))
    elif v.reward_funcs is not None:
        specs = list(v.reward_funcs)
    elif task is not None:
        return dict(task.default_rewards)
    names = [metric_of(spec) for spec in specs]
    weights = v.reward_weights or [weight_of(spec) for spec in specs]
    if len(weights) != len(names):  # reported where the rewards are built
        weights = [1.0] * len(names)
    return dict(zip(names, weights, strict=True))


def weight_of(spec: object) -> float:
    """Return the weight of an entry of `reward_funcs`, or 1 if it has no numeric weight."""
    weight = spec.get("weight", 1.0) if isinstance(spec, Mapping) else 1.0
    return float(weight) if isinstance(weight, int | float) else 1.0


RULES: tuple[Rule, ...] = (
    Dependency("group_filter", ("off",), STEP_NORMALIZATION | WEIGHTED_SUM),
    Dependency("tie_break_reward", (None,), STEP_NORMALIZATION | WEIGHTED_SUM),
    Dependency(
        "max_slots_per_prompt",
        (1,),
        {
            **STEP_NORMALIZATION,
            "curriculum": ("adaptive",),
            "group_filter": ("drop", "off"),
            "tie_break_reward": (None,),
            "partial_rollouts": (0,),
        },
    ),
    Dependency("curriculum", ("none", "adaptive"), {"group_filter": ("drop", "off")}),
    curriculum_of_a_stream,
    order_without_a_difficulty,
    missing_pass_rates,
    weights_without_rewards,
    unknown_group_metric,
    reward_that_cannot_break_ties,
)
NOTES: tuple[Rule, ...] = (
    Idle(
        ("group_filter_max_rounds", "max_staleness"),
        lambda v: v.group_filter == "refill",
        "`group_filter: refill`",
    ),
    Idle(("tie_break_coef",), lambda v: v.tie_break_reward, "tie_break_reward"),
    Idle(
        ("difficulty_column",),
        lambda v: v.curriculum == "easy_to_hard",
        "`curriculum: easy_to_hard`",
    ),
    Idle(
        ("pass_rates_file", "pass_rate_decay"),
        lambda v: v.curriculum == "adaptive",
        "`curriculum: adaptive`",
    ),
)
