"""The metric that chooses the best model: `eval_loss`, transformers' default, says nothing in GRPO."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_ext.objective.policy import get_loss
from grpo_ext.recipe.problems import Problem

LOSS_METRICS = (None, "loss", "eval_loss")


def chooses_by_metric(v: Mapping[str, Any]) -> str | None:
    """Return the option by which an evaluation's metric decides something; `None` if none does."""
    if v["load_best_model_at_end"]:
        return "load_best_model_at_end"
    if v["save_strategy"] == "best":
        return "save_strategy: best"
    if v["lr_scheduler_type"] == "reduce_lr_on_plateau":
        return "lr_scheduler_type: reduce_lr_on_plateau"
    return None


def needs_a_metric(option: str, decodes: bool) -> str:
    """Say that an option reads `eval_loss`, and what to write; `decodes`: whether
    `eval_temperature` is set.
    """
    proposal = "countdown (or any reward)" if decodes else "reward"
    return (
        f"{option} decides by eval_loss, which says nothing about a policy in GRPO: advantages "
        "have mean 0 within each group, so it is rounding noise, or the KL. Write "
        f"metric_for_best_model: {proposal} and greater_is_better: true."
    )


def best_model(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """The metric that chooses the best model says something about it."""
    option = chooses_by_metric(v)
    if option is None or v["metric_for_best_model"] not in LOSS_METRICS:
        return
    if v["eval_strategy"] == "no":  # transformers refuses these options without evaluations
        return
    try:
        by_advantages = get_loss(v["loss_type"]).needs_advantage
    except ValueError:  # reported by its own rule
        return
    if by_advantages:
        decodes = v["eval_temperature"] is not None
        yield Problem(needs_a_metric(option, decodes), option.partition(":")[0])
