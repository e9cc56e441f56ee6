"""The health rules: what each computes from the logs of a run, and when it raises an alarm.

A rule computes a number from a `History` of the logs and compares it with a threshold; larger
numbers are worse. Windows are counted in logs, which are steps if `logging_steps` is 1. Messages
and most thresholds are in `data/health_rules.yaml`. This module imports nothing heavy, because the
check of a recipe needs the rule names.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal, get_args

from grpo_ext.common.files import data_yaml
from grpo_ext.common.mismatch_bars import KL, MEAN_LOG_RATIO
from grpo_ext.common.pages import DOES_NOT_LEARN
from grpo_ext.common.suggestions import did_you_mean

WINDOW = 10  # default number of logs to average
Action = Literal["warn", "checkpoint", "stop"]  # from the mildest to the strongest
ACTIONS: tuple[Action, ...] = get_args(Action)
REPETITION = "samples/repetition"


class History:
    """The finite values of each metric in all logs, and the non-finite metrics of the last log."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.not_finite: set[str] = set()

    def add(self, logs: dict[str, Any]) -> None:
        """Add a log's finite numbers to `values`, and the names of non-finite ones to `not_finite`.

        The names from earlier logs are first removed from `not_finite`. Values that are not numbers
        are ignored.
        """
        self.not_finite = set()
        for key, value in logs.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if math.isfinite(value):
                self.values.setdefault(key, []).append(float(value))
            else:
                self.not_finite.add(key)

    def of(self, *keys: str) -> list[float]:
        """Return the values of the first metric in `keys` that was logged; `[]` if none was."""
        for key in keys:
            if key in self.values:
                return self.values[key]
        return []

    def recent(self, *keys: str, window: int = WINDOW) -> float | None:
        """Return the mean of the last `window` values of `of(*keys)`; `None` if there are fewer."""
        values = self.of(*keys)
        if len(values) < window:
            return None
        return fmean(values[-window:])


@dataclass(frozen=True)
class Rule:
    """A check for one sign that a run is going wrong."""

    name: str
    threshold: float
    meaning: str  # what a value above the threshold means, with a `{}` field for the value
    advice: str  # what to try
    section: str  # the anchor of the rule's section in docs/does-not-learn.md
    measure: Callable[[History], float | None]  # returns `None` while there are too few logs
    action: str = "warn"
    # whether `health_action` leaves the action at "warn"; `health_rules` can still change it
    only_warns: bool = False


def reward_collapse(history: History) -> float | None:
    """Return how far the mean reward of the last 5 logs is below its best, in standard errors.

    The best is the highest mean of 5 consecutive logs among the last 500. The standard error is
    that of a mean of 5 logs, and accounts for autocorrelation, which is estimated from the logs up
    to the best. Returns 0 if the reward fell by at most a fifth of the best's absolute value, and
    `None` if fewer than 10 logs have a finite reward.
    """
    import numpy as np

    from grpo_ext.common import noise

    values = np.array(history.of("reward")[-500:])
    window = WINDOW // 2
    if len(values) < 2 * window:
        return None
    means = noise.means_of_neighbors(values, window)
    best = float(means.max())
    fall = best - float(means[-1])
    if fall <= 0.2 * abs(best):
        return 0.0
    end_of_best = int(means.argmax()) + window
    before = values[:end_of_best]
    autocorrelation = noise.autocorrelation_of_neighbors(before)
    error = noise.error_of_neighbors(values, window, autocorrelation)
    return fall / max(error, 1e-9)


def rise(values: list[float], floor: float, window: int = 3) -> float | None:
    """Return the median of the latest values divided by the median of up to 50 values before them.

    Args:
        values: the values of a metric, oldest first.
        floor: the smallest divisor; a smaller median is replaced by it.
        window: the number of latest values.

    Returns:
        The ratio, or `None` if there are fewer than `WINDOW + window` values.
    """
    if len(values) < WINDOW + window:
        return None
    last = median(values[-window:])
    usual = median(values[-50 - window : -window])
    return last / max(usual, floor)


def growth(values: list[float]) -> float | None:
    """Return the mean of the last 5 values divided by the mean of the 5 values 20 logs earlier.

    The divisor is at least 1. Returns `None` if there are fewer than 30 values.
    """
    if len(values) < 3 * WINDOW:
        return None
    half = WINDOW // 2
    before = fmean(values[-2 * WINDOW - half : -2 * WINDOW])
    last = fmean(values[-half:])
    return last / max(before, 1.0)


def fall_from_start(values: list[float]) -> float | None:
    """Return the mean of the first 10 values divided by the mean of the last 5.

    The divisor is at least 1e-9. Returns `None` if there are fewer than 20 values.
    """
    if len(values) < 2 * WINDOW:
        return None
    first = fmean(values[:WINDOW])
    last = fmean(values[-WINDOW // 2 :])
    return first / max(last, 1e-9)


def logp_difference(history: History) -> float | None:
    """Return how far the sampler's log-probs are from the trainer's, averaged over the last 3 logs.

    If generation is overlapped, only differences measured right after a weight sync count. Returns
    `None` if there are fewer than 3 values.
    """
    if "overlap/age" in history.values:
        return history.recent("sampling/sync_difference", window=3)
    return history.recent(
        "sampling/logp_difference/mean",
        "sampling/sampling_logp_difference/mean",  # logged by TRL
        window=3,
    )


def sampler_kl(history: History) -> float | None:
    """Return the mean KL divergence between the sampler and the trainer over the last 3 logs.

    Returns `None` if there are fewer than 3 values. Also returns `None` if generation is
    overlapped, because the sampler's older weights then contribute to the KL divergence.
    """
    if "overlap/age" in history.values:
        return None
    return history.recent("sampling/kl", window=3)


def not_finite(history: History) -> float:
    """Return 1 if one of the main metrics of the last log is not finite, otherwise 0."""
    main_metrics = {"loss", "grad_norm", "reward", "kl", "entropy"}
    return float(not main_metrics.isdisjoint(history.not_finite))


MEASURES: dict[str, Callable[[History], float | None]] = {
    "not_finite": not_finite,
    "reward_collapse": reward_collapse,
    "kl": lambda history: rise(history.of("kl"), 0.05),
    "entropy": lambda history: fall_from_start(history.of("entropy")),
    "truncated": lambda history: history.recent("completions/clipped_ratio"),
    "length": lambda history: growth(history.of("completions/mean_length")),
    "repetition": lambda history: history.recent(REPETITION, window=3),
    "no_signal": lambda history: history.recent("frac_reward_zero_std"),
    "clipped": lambda history: history.recent("clip_ratio/region_mean", window=3),
    "logp_difference": logp_difference,
    "sampler_kl": sampler_kl,
    "edge_tokens": lambda history: history.recent("sampling/edge_tokens"),
    "age": lambda history: history.recent("overlap/age"),
    "grad_norm": lambda history: rise(history.of("grad_norm"), 1e-3),
}
# thresholds that are also limits in `grpo-ext numerics`; the others are in `health_rules.yaml`
SHARED_THRESHOLDS = {
    "logp_difference": MEAN_LOG_RATIO.limit,
    "sampler_kl": KL.limit,
}


def rule_of(name: str, settings: dict[str, Any]) -> Rule:
    """Build a rule from its settings in `health_rules.yaml`.

    If the rule has a threshold in `SHARED_THRESHOLDS`, that one is used.
    """
    if name in SHARED_THRESHOLDS:
        settings = {**settings, "threshold": SHARED_THRESHOLDS[name]}
    return Rule(name, **settings, measure=MEASURES[name])


RULES = {
    name: rule_of(name, settings)
    for name, settings in data_yaml("grpo_ext.observe", "health_rules.yaml").items()
}


@dataclass
class Watch:
    """Applies the rules to each log.

    A rule raises an alarm when its value exceeds the threshold. It can raise another alarm only
    after `WINDOW` consecutive logs in which the value did not exceed the threshold.
    """

    rules: list[Rule]
    history: History = field(default_factory=History)
    # for each rule, the number of logs since it last exceeded its threshold
    quiet: dict[str, int] = field(default_factory=dict)

    def add(self, logs: dict[str, Any]) -> list[dict[str, Any]]:
        """Add a training log and return the new alarms as rows for `metrics.jsonl`."""
        self.history.add(logs)
        alarms = []
        for rule in self.rules:
            figure = rule.measure(self.history)
            quiet = self.quiet.get(rule.name, WINDOW)
            if figure is None or not figure > rule.threshold:
                self.quiet[rule.name] = quiet + 1
                continue
            self.quiet[rule.name] = 0
            if quiet >= WINDOW:
                alarms.append(alarm(rule, figure))
        return alarms


def alarm(rule: Rule, figure: float) -> dict[str, Any]:
    """Return the alarm of a rule whose value is `figure`, as a row for `metrics.jsonl`.

    The row has the keys `alarm` (the name of the rule), `value`, `threshold`, `action` and
    `message`.
    """
    meaning = rule.meaning[0].upper() + rule.meaning[1:]
    return {
        "alarm": rule.name,
        "value": figure,
        "threshold": rule.threshold,
        "action": rule.action,
        "message": (
            f"{meaning.format(figure)} (threshold: {rule.threshold:g}). What to try: {rule.advice}."
            f" See {DOES_NOT_LEARN}#{rule.section}."
        ),
    }


def chosen_rules(settings: dict[str, Any] | None, action: str = "warn") -> list[Rule]:
    """Return the rules that the recipe enables, with their thresholds and actions.

    Args:
        settings: the settings of the rules to change, by name. A setting is `False` (disables the
            rule), a threshold, or a mapping with `threshold`, `action` or both. `None` changes no
            rule.
        action: the default action of all rules except those with `only_warns`; `"none"` disables
            all rules and skips the check of `settings`.

    Raises:
        ValueError: if a rule or an action is unknown, or a setting has any other form.
    """
    if action == "none":
        return []
    settings = settings or {}
    for name in settings.keys() - RULES.keys():
        raise ValueError(
            f"health_rules: unknown rule {name!r}.{did_you_mean(name, RULES)} Choose one of "
            f"{', '.join(RULES)}."
        )
    rules: list[Rule] = []
    for name, rule in RULES.items():
        setting = settings.get(name, {})
        if setting is False:
            continue
        if not isinstance(setting, dict):
            setting = {"threshold": setting}
        usual_action = "warn" if rule.only_warns else action
        setting = {"threshold": rule.threshold, "action": usual_action, **setting}
        has_number = type(setting["threshold"]) in (int, float)
        if setting.keys() != {"threshold", "action"} or not has_number:
            raise ValueError(
                f"health_rules: {name} must be false, a number, or a mapping with `threshold` (a "
                f"number), `action`, or both; got {settings[name]!r}."
            )
        if setting["action"] not in ACTIONS:
            raise ValueError(
                f"health_rules: the action of {name} must be one of {', '.join(ACTIONS)}; got "
                f"{setting['action']!r}."
            )
        rules.append(replace(rule, **setting))
    return rules
