"""Signs that a run goes wrong: a figure of the last logs for each rule. `data/health_rules.yaml`
has thresholds and words.

A rule computes a figure from a `History`, such that a larger figure is worse, and compares it with
a threshold. Windows are counted in logs; with `logging_steps: 1` these are steps.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any, Literal, get_args

import numpy as np

from grpo_ext.common.files import data_yaml
from grpo_ext.common.noise import (
    autocorrelation_of_neighbours,
    error_of_neighbours,
    means_of_neighbours,
)
from grpo_ext.common.suggestions import did_you_mean

WINDOW = 10  # logs of a mean
Action = Literal["warn", "checkpoint", "stop"]  # from the mildest to the strongest
ACTIONS: tuple[Action, ...] = get_args(Action)
REPETITION = "samples/repetition"


class History:
    """The finite values of each metric in the order of the logs. `odd` holds the values of the last
    log that are not finite.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.odd: dict[str, float] = {}

    def add(self, logs: dict[str, Any]) -> None:
        self.odd = {}
        for key, value in logs.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if math.isfinite(value):
                self.values.setdefault(key, []).append(float(value))
            else:
                self.odd[key] = value

    def of(self, *keys: str) -> list[float]:
        """Return the values of the first of these metrics that was logged."""
        return next((self.values[key] for key in keys if key in self.values), [])

    def recent(self, *keys: str, window: int = WINDOW) -> float | None:
        """Return the mean of the last `window` values; `None` if there are fewer."""
        values = self.of(*keys)
        return fmean(values[-window:]) if len(values) >= window else None


@dataclass(frozen=True)
class Rule:
    """A sign that a run goes wrong."""

    name: str
    threshold: float
    meaning: str
    advice: str  # what to try
    measure: Callable[[History], float | None]  # `None` while there are too few logs
    action: str = "warn"


def reward_collapse(history: History) -> float | None:
    """Return how far the mean reward of 5 logs has fallen from its best, in standard errors of such
    a mean.

    A fall by less than a fifth of the best counts as 0. The errors count the autocorrelation of the
    noise before the fall.
    """
    values = np.array(history.of("reward")[-500:])
    window = WINDOW // 2
    if len(values) < 2 * window:
        return None
    means = means_of_neighbours(values, window)
    best = float(means.max())
    fall = best - float(means[-1])
    if fall <= 0.2 * abs(best):
        return 0.0
    before = values[: int(means.argmax()) + window]
    autocorrelation = autocorrelation_of_neighbours(before)
    return fall / max(error_of_neighbours(values, window, autocorrelation), 1e-9)


def rise(values: list[float], floor: float, window: int = 3) -> float | None:
    """Return the median of the last values divided by the median of up to 50 values before, which
    is at least `floor`.
    """
    enough = len(values) >= WINDOW + window
    return (
        median(values[-window:]) / max(median(values[-50 - window : -window]), floor)
        if enough
        else None
    )


def growth(values: list[float]) -> float | None:
    """Return the mean of the last 5 values divided by the mean of 5 values two windows ago."""
    if len(values) < 3 * WINDOW:
        return None
    return fmean(values[-WINDOW // 2 :]) / max(
        fmean(values[-2 * WINDOW - WINDOW // 2 : -2 * WINDOW]), 1.0
    )


def fall_from_start(values: list[float]) -> float | None:
    """Return the mean of the first values divided by the mean of the last 5."""
    if len(values) < 2 * WINDOW:
        return None
    return fmean(values[:WINDOW]) / max(fmean(values[-WINDOW // 2 :]), 1e-9)


def logp_difference(history: History) -> float | None:
    """Return the difference of sampler and trainer; with overlap that after a weight sync, to which
    age adds nothing.
    """
    logged = (
        "sampling/logp_difference/mean",
        "sampling/sampling_logp_difference/mean",
    )  # the second by TRL
    return history.recent(
        *(["sampling/sync_difference"] if "overlap/age" in history.values else logged), window=3
    )


MEASURES: dict[str, Callable[[History], float | None]] = {
    "not_finite": lambda h: float(
        any(key in h.odd for key in ("loss", "grad_norm", "reward", "kl", "entropy"))
    ),
    "reward_collapse": reward_collapse,
    "kl": lambda h: rise(h.of("kl"), 0.05),
    "entropy": lambda h: fall_from_start(h.of("entropy")),
    "truncated": lambda h: h.recent("completions/clipped_ratio"),
    "length": lambda h: growth(h.of("completions/mean_length")),
    "repetition": lambda h: h.recent(REPETITION, window=3),
    "no_signal": lambda h: h.recent("frac_reward_zero_std"),
    "clipped": lambda h: h.recent("clip_ratio/region_mean", window=3),
    "logp_difference": logp_difference,
    "age": lambda h: h.recent("overlap/age"),
    "grad_norm": lambda h: rise(h.of("grad_norm"), 1e-3),
}
RULES = {
    name: Rule(name, **words, measure=MEASURES[name])
    for name, words in data_yaml("grpo_ext.observe", "health_rules.yaml").items()
}


@dataclass
class Watch:
    """The rules in use. A rule raises an alarm once, and again after it was quiet for a window."""

    rules: list[Rule]
    history: History = field(default_factory=History)
    # logs since the rule last was over its threshold
    quiet: dict[str, int] = field(default_factory=dict)

    def add(self, logs: dict[str, Any]) -> list[dict[str, Any]]:
        """Take a training log and return the new alarms as rows for `metrics.jsonl`."""
        self.history.add(logs)
        alarms = []
        for rule in self.rules:
            value = rule.measure(self.history)
            quiet = self.quiet.get(rule.name, WINDOW)
            over = value is not None and value > rule.threshold
            self.quiet[rule.name] = 0 if over else quiet + 1
            if over and quiet >= WINDOW:
                words = (
                    f"{rule.meaning[0].upper()}{rule.meaning[1:]} ({value:.3g}, above "
                    f"{rule.threshold:g})."
                )
                alarm = {
                    "alarm": rule.name,
                    "value": value,
                    "threshold": rule.threshold,
                    "action": rule.action,
                }
                alarms.append({**alarm, "message": f"{words} What to try: {rule.advice}."})
        return alarms


def chosen_rules(settings: dict[str, Any] | None, action: str = "warn") -> list[Rule]:
    """Return the rules, changed by `settings`: for a rule `false`, a threshold, or `{threshold:
    ..., action: ...}`.

    `action` is that of the rules without one in `settings`; `"none"` returns no rules. `ValueError`
    for an unknown rule or action, or another kind of setting.
    """
    if action == "none":
        return []
    rules: list[Rule] = []
    settings = settings or {}
    for name in settings.keys() - RULES.keys():
        raise ValueError(
            f"health_rules has no rule {name!r}.{did_you_mean(name, RULES)} Known: "
            f"{', '.join(RULES)}."
        )
    for name, rule in RULES.items():
        if (wanted := settings.get(name, {})) is False:
            continue
        wanted = wanted if isinstance(wanted, dict) else {"threshold": wanted}
        found = {"threshold": rule.threshold, "action": action, **wanted}
        if set(found) != {"threshold", "action"} or type(found["threshold"]) not in (int, float):
            raise ValueError(
                f"health_rules: {name} is false, a number, or {{threshold: NUMBER, action: "
                f"ACTION}}."
            )
        if (chosen := found["action"]) not in ACTIONS:
            raise ValueError(
                f"health_rules: the action of {name} is one of {', '.join(ACTIONS)}; got "
                f"{chosen!r}."
            )
        rules.append(replace(rule, **found))
    return rules


def repeats_itself(text: str) -> bool:
    """Whether a text of at least 200 bytes repeats itself: its first 4,000 bytes compress to less
    than a tenth.
    """
    data = text.encode("utf-8", "replace")[:4000]
    return len(data) >= 200 and len(zlib.compress(data, 1)) < len(data) / 10
