"""Check the metric that selects the best model.

transformers' default, `eval_loss`, says nothing about a policy trained with GRPO.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.objective.policy import get_loss
from grpo_ext.recipe.group_options import reward_weights_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Unsound, Values

if TYPE_CHECKING:
    from trl import GRPOConfig

OF_REWARDS = (
    "rewards/",
    "pass@",
    "mean@",
    "mixed@",
)  # prefixes of metrics that are computed from rewards


@dataclass(frozen=True)
class EvaluationMetrics:
    """The metrics that evaluations log, named without the prefix `eval_`."""

    rewards: Sequence[str]  #: names of the rewards
    decodes: bool  #: whether `eval_temperature` is set; otherwise TRL evaluates
    num_samples: int = 1  #: completions per prompt, with `eval_temperature`
    constant: bool = True  #: whether the best constant answer is scored
    sets: Sequence[str] = ()  #: names of the evaluation datasets; empty if there is only one

    @property
    def losses(self) -> list[str]:
        """The name of the loss metric of each evaluation dataset."""
        return self._of_sets(["loss"])

    @property
    def growing(self) -> list[str]:
        """The names of the metrics that increase with the rewards."""
        return self._of_sets(self._growing_of_a_set())

    @property
    def known(self) -> list[str]:
        """The names of all logged metrics of scores and lengths, without their standard errors."""
        return self._of_sets(self._known_of_a_set())

    def of_a_set(self, metric: str) -> str:
        """Return `metric` without the name of an evaluation dataset in front, if there is one.

        If the names of several datasets match, the longest one is removed.
        """
        prefixes = [f"{name}_" for name in self.sets if metric.startswith(f"{name}_")]
        return metric.removeprefix(max(prefixes, key=len, default=""))

    def fault(self, metric: str) -> str | None:
        """Return an error message if evaluations do not log `metric`, otherwise `None`.

        Also return `None` for a name that resembles no known metric, because a reward may log it.
        """
        name = metric.removesuffix("_se")
        if name in self.known:
            return None
        bare = self.of_a_set(name)
        of_a_set = self._known_of_a_set()
        meant = bare in (*of_a_set, *self.rewards, "reward") or bare.startswith(OF_REWARDS)
        if not meant and not did_you_mean(name, self.known):
            return None
        first = f"{self.sets[0]}_" if self.sets and bare == name else name.removesuffix(bare)
        proposals = [f"{first}{bare}", f"{first}rewards/{bare}/mean"]
        near = [proposal for proposal in proposals if proposal in self.known]
        hint = f" Did you mean {near[0]!r}?" if near else did_you_mean(name, self.known)
        return (
            f"metric_for_best_model: evaluations do not log {metric!r}.{hint} They log "
            f"{', '.join(self.known)}."
        )

    def _growing_of_a_set(self) -> list[str]:
        if not self.decodes:
            return ["reward", *(f"rewards/{name}/mean" for name in self.rewards)]
        metrics = [*self.rewards, "pass@1"]
        k = self.num_samples
        if k > 1:
            metrics += [f"mean@{k}", f"pass@{k}"]
        return metrics

    def _known_of_a_set(self) -> list[str]:
        metrics = self._growing_of_a_set()
        if self.decodes:
            if self.num_samples > 1:
                metrics.append(f"mixed@{self.num_samples}")
            return [*metrics, "length"]
        metrics.append("reward_std")
        for name in self.rewards:
            metrics.append(f"rewards/{name}/std")
            if self.constant:
                metrics.append(f"rewards/{name}/constant")
        return metrics

    def _of_sets(self, metrics: Sequence[str]) -> list[str]:
        return [f"{name}_{metric}" for name in self.sets for metric in metrics] or list(metrics)


def chooses_by_metric(v: Values | GRPOConfig) -> str | None:
    """Return the first option that is set and uses an evaluation metric, or `None`.

    The result is `"load_best_model_at_end"`, `"save_strategy: best"` or `"lr_scheduler_type:
    reduce_lr_on_plateau"`; if several are set, the first in this order.
    """
    if v.load_best_model_at_end:
        return "load_best_model_at_end"
    if v.save_strategy == "best":
        return "save_strategy: best"
    if v.lr_scheduler_type == "reduce_lr_on_plateau":
        return "lr_scheduler_type: reduce_lr_on_plateau"
    return None


def plain_metric(metric_for_best_model: str | None) -> str:
    """Return the name of a metric without `eval_`; for `None`, return `"loss"`, the default."""
    return (metric_for_best_model or "loss").removeprefix("eval_")


def needs_a_metric(option: str, evaluation: EvaluationMetrics) -> str:
    """Return the error message for an option that would select by `eval_loss`.

    The message proposes the first of `evaluation.growing` instead.
    """
    return (
        f"`{option}` uses eval_loss, which does not measure a policy trained with GRPO: advantages "
        "have mean 0 within each group, so the loss is rounding noise or the KL. Set "
        f"`metric_for_best_model: {evaluation.growing[0]}` and `greater_is_better: true`."
    )


def lowest_reward(metric: str) -> str:
    """Return the error message for `greater_is_better: false` with a metric of rewards."""
    return (
        f"`greater_is_better: false` with `metric_for_best_model: {metric}` selects the model with "
        "the lowest reward. Set `greater_is_better: true`, or remove the key."
    )


def metric_that_says_nothing(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `metric_for_best_model` is a meaningless loss or is not logged.

    Nothing is checked if no option uses the metric (see `chooses_by_metric`), or if the run does
    not evaluate.
    """
    option = chooses_by_metric(v)
    if option is None or v.eval_strategy == "no":
        return  # transformers rejects these options without evaluations
    metric = plain_metric(v.metric_for_best_model)
    decodes = v.eval_temperature is not None
    weights: dict[str, float] = {}
    with suppress(Unsound):  # arguments built in Python do not name the rewards
        weights = reward_weights_of(v)
    if metric == "loss":
        try:
            by_advantages = get_loss(v.loss_type).needs_advantage
        except ValueError:  # reported by its own rule
            return
        if by_advantages:
            by_weight = sorted(weights, key=lambda name: -weights[name])
            evaluation = EvaluationMetrics(by_weight, decodes)
            yield Problem(needs_a_metric(option, evaluation), option.partition(":")[0])
        return
    if weights:
        evaluation = EvaluationMetrics(list(weights), decodes, v.eval_num_samples, v.eval_constant)
        fault = evaluation.fault(metric)
        if fault is not None:
            yield Problem(fault, "metric_for_best_model")


RULES: tuple[Rule, ...] = (metric_that_says_nothing,)
