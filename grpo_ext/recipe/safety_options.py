"""The options about gradients that are not finite, alarms of the health monitor, and rollbacks."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.observe.health_rules import WINDOW, Action, chosen_rules
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import CountOrZero, PositiveShare


@dataclass
class SafetyOptions:
    """Recipe keys about faults and alarms; a base of `GRPOExtConfig`.

    Args:
        max_skipped_steps (`int`, defaults to 5): optimizer steps in a row that may be skipped because their gradient is not
            finite; one more ends the run with a checkpoint. A skipped step changes neither the weights nor the optimizer's
            state. `skipped_steps` counts them; micro-batches and weights of the first two are saved in `not_finite-STEP`.
        health_action (`str`, defaults to `"warn"`): what an alarm of the health monitor does. `"warn"`: it warns.
            `"checkpoint"`: it also saves a checkpoint. `"rollback"`: the run goes back to the last checkpoint from well before
            the alarm, with a lower learning rate. `"stop"`: the run ends with a checkpoint. `"none"`: there is no monitor.
        health_rules (`dict`, *optional*): settings of single rules of the monitor: `false`, a threshold, or
            `{threshold: ..., action: ...}`. `docs/report.md` lists the rules with their thresholds.
        rollback_factor (`float`, defaults to 0.25): factor of the learning rate at each rollback.
        max_rollbacks (`int`, defaults to 3): most rollbacks of one run; an alarm that asks for one more ends the run.
    """

    max_skipped_steps: CountOrZero = 5
    health_action: Literal["none", Action] = "warn"
    health_rules: dict[str, Any] | None = None
    rollback_factor: PositiveShare = 0.25
    max_rollbacks: CountOrZero = 3


def steps_back(logging_steps: float) -> int:
    """Return how many steps older than an alarm a healthy checkpoint must be: as many as the alarms look at."""
    return max(1, math.ceil(WINDOW * max(logging_steps, 1)))


def health(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """The rules of the monitor are known ones, and there are checkpoints that a rollback can go back to."""
    try:
        rules = chosen_rules(v["health_rules"], v["health_action"])
    except ValueError as error:
        yield Problem(str(error), "health_rules")
        return
    if not any(rule.action == "rollback" for rule in rules):
        return
    if str(v["save_strategy"]) == "no" or v["save_only_model"]:
        key = "save_only_model" if v["save_only_model"] else "save_strategy"
        words = f"rollback needs checkpoints to go back to: take {key}: {v[key]} out."
        yield Problem(f"health_action: {words}", "health_action")
        return
    back = steps_back(v["logging_steps"])
    if str(v["save_strategy"]) == "steps" and v["save_steps"] >= 1 and v["save_total_limit"]:
        least = 1 + math.ceil(back / v["save_steps"])
        if v["save_total_limit"] < least:
            words = f"rollback goes back to a checkpoint at least {back} steps old ({WINDOW} logs)"
            kept = f"save_total_limit: {v['save_total_limit']} keeps none"
            how = f"write {least} or more, or a larger save_steps."
            yield Problem(f"health_action: {words}, and {kept}: {how}", "save_total_limit")
