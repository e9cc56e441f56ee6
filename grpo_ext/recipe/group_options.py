"""The options about groups of completions: which count, and which prompts they are of. `docs/groups.md` explains them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.common.near import did_you_mean
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import Count, CountOrZero, Share
from grpo_ext.tasks import task_classes


@dataclass
class GroupOptions:
    """Recipe keys about groups; a base of `GRPOExtConfig`.

    Args:
        group_filter (`str`, defaults to `"off"`): what becomes of a group without signal. `"off"`: it is trained on, with
            advantages of 0. `"drop"`: it is left out, and the loss is divided by what is left. `"refill"`: further prompts
            are drawn and completed until the step has as many groups with signal as it should have groups.
        group_filter_metric (`str`, *optional*): the reward that groups are judged by. `None`: the one of the largest weight,
            of several the first. Not the weighted sum, in which a format reward hides that all answers are wrong.
        group_filter_pass_rates (`list[float]`, *optional*): lowest and highest share of right completions that a group with
            signal has, both allowed. `None`: a group has signal if the reward varies within it.
        group_filter_max_rounds (`int`, defaults to 4): further generations for one step at most; then it goes on with the
            groups that there are.
        max_staleness (`int`, defaults to 1): optimizer steps for which a group that was generated in excess may be kept. It
            is trained on with the log-probs of the policy that sampled it. 0 generates nothing in excess.
        pass_threshold (`float`, defaults to 1.0): the reward from which a completion counts as right.
        curriculum (`str`, defaults to `"none"`): how prompts are chosen. `"none"`: a permutation an epoch.
            `"easy_to_hard"`: each epoch by `difficulty_column`, or by falling pass rate. `"adaptive"`: by the chance that some
            of a group pass and some do not, 1 - p^G - (1-p)^G. `"easy_pool"`: at random, but seldom what is always solved.
        pass_rates_file (`str`, *optional*): pass rates to start from, as `grpo-ext probe` writes them.
        difficulty_column (`str`, *optional*): a column of numbers, larger for harder; for `"easy_to_hard"`.
        pass_rate_decay (`float`, defaults to 0.5): what a prompt's earlier completions count beside its newest group.
        curriculum_floor (`float`, defaults to 0.1): share of the draws of `"adaptive"` that are even over all prompts.
        easy_pool_share (`float`, defaults to 0.1): share of the draws of `"easy_pool"` from what is always solved.
        harvest (`dict`, *optional*): keep good completions as a data set for `grpo-ext sft`, each once: `min_reward` (that of
            `group_filter_metric`; defaults to `pass_threshold`), `max_per_prompt` (4) and `path` (`harvest.jsonl` in
            `output_dir`). `{}` takes all three defaults.
    """

    group_filter: Literal["off", "drop", "refill"] = "off"
    group_filter_metric: str | None = None
    group_filter_pass_rates: list[float] | None = None
    group_filter_max_rounds: Count = 4
    max_staleness: CountOrZero = 1
    pass_threshold: float = 1.0
    curriculum: Literal["none", "easy_to_hard", "adaptive", "easy_pool"] = "none"
    pass_rates_file: str | None = None
    difficulty_column: str | None = None
    pass_rate_decay: Share = 0.5
    curriculum_floor: Share = 0.1
    easy_pool_share: Share = 0.1
    harvest: dict[str, Any] | None = None


# Keys that only some values of an option read.
READERS = {
    "group_filter_pass_rates": ("group_filter", "drop", "refill"),
    "group_filter_max_rounds": ("group_filter", "drop", "refill"),
    "max_staleness": ("group_filter", "drop", "refill"),
    "pass_rates_file": ("curriculum", "easy_to_hard", "adaptive", "easy_pool"),
    "difficulty_column": ("curriculum", "easy_to_hard"),
    "pass_rate_decay": ("curriculum", "adaptive", "easy_pool"),
    "curriculum_floor": ("curriculum", "adaptive"),
    "easy_pool_share": ("curriculum", "easy_pool"),
}


def unread(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """What is set and not read."""
    for key, (option, *kinds) in READERS.items():
        if key in v and v[option] not in kinds:
            yield Problem(f"{key} does nothing with {option}: {v[option]}.", key, idle=True)


def metric_rules(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """The reward that groups are judged by is one of the recipe's."""
    metric, specs, task = v["group_filter_metric"], v["reward_funcs"], task_classes().get(v["task"])
    names = list(task.default_rewards) if task else []
    if specs is not None:
        names = [spec if isinstance(spec, str) else str(spec.get("name")) for spec in specs]
    if names and metric is not None and metric not in names:
        words = f"no reward {metric!r} in this recipe. It has {', '.join(names)}.{did_you_mean(metric, names)}"
        yield Problem(f"group_filter_metric: {words}", "group_filter_metric")


def harvest_rules(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """What a harvest may say."""
    given = v["harvest"]
    if given is None:
        return
    kinds: dict[str, Any] = {"min_reward": (int, float), "max_per_prompt": (int,), "path": (str,)}
    for key, value in given.items():
        if key not in kinds:
            yield Problem(f"harvest has {', '.join(kinds)}; got {key!r}.{did_you_mean(key, kinds)}", "harvest")
        elif isinstance(value, bool) or not isinstance(value, kinds[key]):
            yield Problem(f"harvest: {key} is {'text' if key == 'path' else 'a number'}; got {value!r}.", "harvest")
        elif key == "max_per_prompt" and value < 1:
            yield Problem(f"harvest: max_per_prompt must be at least 1, got {value}.", "harvest")
