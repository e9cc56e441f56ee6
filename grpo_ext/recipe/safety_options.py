"""Options for non-finite gradients and for the health monitor's alarms, and their rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.observe.health_rules import Action, chosen_rules
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import CountOrZero


@dataclass
class SafetyOptions:
    """Recipe keys for faults and alarms; a base of `GRPOExtConfig`.

    Args:
        max_skipped_steps (`int`, defaults to 5): the maximum number of consecutive optimizer steps
            that are skipped because their gradient is not finite; one more ends the run with a
            checkpoint. A skipped step changes neither the weights nor the optimizer's state.
            The metric `skipped_steps` counts them.
        health_action (`str`, defaults to `"warn"`): what happens when the health monitor raises an
            alarm. `"warn"`: a warning is logged. `"checkpoint"`: a checkpoint is saved as well.
            `"stop"`: the run ends with a checkpoint. `"none"`: the monitor is off.
        health_rules (`dict`, *optional*): settings for rules of the health monitor, by name:
            `false` turns a rule off, a number is its threshold, and `{threshold: ..., action: ...}`
            sets its threshold, its action or both. `docs/report.md` lists the rules with their
            thresholds.
    """

    max_skipped_steps: CountOrZero = 5
    health_action: Literal["none", Action] = "warn"
    health_rules: dict[str, Any] | None = None


def unknown_health_rule(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `health_rules` names an unknown rule or has an invalid setting."""
    try:
        chosen_rules(v.health_rules, v.health_action)
    except ValueError as error:
        yield Problem(str(error), "health_rules")


RULES: tuple[Rule, ...] = (unknown_health_rule,)
