"""Signs that a run is going wrong: each a few lines over the metrics of the last steps.

A rule looks at a `History`, compares a figure with its threshold, and returns the figure where it is over. Figures are made so
that a larger one is worse. Windows are counted in logs; with `logging_steps: 1` these are steps.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal, get_args

from grpo_ext.common.near import did_you_mean

WINDOW = 10  # logs that a mean is taken over
Action = Literal["warn", "checkpoint", "rollback", "stop"]  # each outweighs those before it
ACTIONS: tuple[Action, ...] = get_args(Action)
REPETITION = "samples/repetition"


class History:
    """The finite values of each metric, in the order in which they were logged; what was not finite is in `odd`."""

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
        """The values of the first of these metrics that was logged."""
        return next((self.values[key] for key in keys if key in self.values), [])

    def recent(self, *keys: str, window: int = WINDOW) -> float | None:
        """The mean of the last values; `None` where there are too few."""
        values = self.of(*keys)
        return fmean(values[-window:]) if len(values) >= window else None


@dataclass(frozen=True)
class Rule:
    """What a sign is called, from where on it counts, what it means, what to try, and how it is measured."""

    name: str
    threshold: float
    meaning: str
    advice: str
    measure: Callable[[History], float | None]
    action: str = "warn"

    def alarm(self, value: float) -> dict[str, Any]:
        """What there is to say of a figure above the threshold: what it is, what it means, what to try."""
        words = f"{self.meaning[0].upper()}{self.meaning[1:]} ({value:.3g}, above {self.threshold:g})."
        note = {"alarm": self.name, "value": value, "threshold": self.threshold, "action": self.action}
        return {**note, "message": f"{words} What to try: {self.advice}."}


def reward_collapse(history: History) -> float | None:
    """How far the mean reward has fallen from its best, both over 5 logs, in standard errors of such a mean.

    The noise is that of neighbouring logs. A fall by less than a fifth of the best is none.
    """
    values, window = history.of("reward")[-500:], WINDOW // 2
    if len(values) < 2 * window:
        return None
    means = [fmean(values[i : i + window]) for i in range(len(values) - window + 1)]
    noise = math.sqrt(fmean((b - a) ** 2 for a, b in pairwise(values)) / window)
    best = max(means)
    fall = best - means[-1]
    return fall / max(noise, 1e-9) if fall > 0.2 * abs(best) else 0.0


def rise(values: list[float], floor: float, window: int = 3) -> float | None:
    """How many times the usual value, the median of what was before, the last ones are; below `floor` nothing is a rise."""
    enough = len(values) >= WINDOW + window
    return median(values[-window:]) / max(median(values[-50 - window : -window]), floor) if enough else None


def growth(values: list[float]) -> float | None:
    """How many times as large as two windows ago."""
    if len(values) < 3 * WINDOW:
        return None
    return fmean(values[-WINDOW // 2 :]) / max(fmean(values[-2 * WINDOW - WINDOW // 2 : -2 * WINDOW]), 1.0)


def fall_from_start(values: list[float]) -> float | None:
    """How many times smaller than at the start."""
    if len(values) < 2 * WINDOW:
        return None
    return fmean(values[:WINDOW]) / max(fmean(values[-WINDOW // 2 :]), 1e-9)


def not_finite(history: History) -> float | None:
    return float(any(key in history.odd for key in ("loss", "grad_norm", "reward", "kl", "entropy")))


LOGP_DIFFERENCE = ("sampling/logp_difference/mean", "sampling/sampling_logp_difference/mean")
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("not_finite", 0.5, "loss, gradient, reward, KL or entropy is not a finite number",
             "go back to the last checkpoint; lower learning_rate, look at the rewards, train in bf16 or fp32", not_finite),
        Rule("reward_collapse", 6.0, "the mean reward has fallen by this many standard errors from its best",
             "go back to a checkpoint before the fall; lower learning_rate, raise beta, lower num_iterations", reward_collapse),
        Rule("kl", 10.0, "the KL to the reference is this many times what it was",
             "lower learning_rate or raise beta", lambda h: rise(h.of("kl"), 0.05)),
        Rule("entropy", 20.0, "the entropy is this many times smaller than at the start: the model no longer explores",
             "lower learning_rate, raise epsilon_high or temperature, set entropy_coef",
             lambda h: fall_from_start(h.of("entropy"))),
        Rule("truncated", 0.5, "this share of the completions runs into max_completion_length",
             "raise max_completion_length, or punish length (soft_overlong)", lambda h: h.recent("completions/clipped_ratio")),
        Rule("length", 2.5, "completions are this many times as long as 20 logs ago",
             "look at the samples for repetition; punish length", lambda h: growth(h.of("completions/mean_length"))),
        Rule("repetition", 0.3, "this share of the completions repeats itself",
             "look at the samples; lower learning_rate, set repetition_penalty", lambda h: h.recent(REPETITION, window=3)),
        Rule("no_signal", 0.9, "in this share of the groups all rewards are equal: they teach nothing",
             "take easier or harder prompts, raise num_generations or temperature, drop such groups",
             lambda h: h.recent("frac_reward_zero_std")),
        Rule("clipped", 0.4, "this share of the tokens is clipped: steps are too large for what was sampled",
             "lower learning_rate, num_iterations or steps_per_generation",
             lambda h: h.recent("clip_ratio/region_mean", window=3)),
        Rule("logp_difference", 0.1, "the sampler and the trainer differ by this much in a token's log-prob, on average",
             "look for a difference in precision, weights or sampling settings between sampler and trainer",
             lambda h: h.recent(*LOGP_DIFFERENCE, window=3)),
        Rule("grad_norm", 10.0, "the gradient norm is this many times the usual",
             "lower learning_rate or max_grad_norm", lambda h: rise(h.of("grad_norm"), 1e-3)),
    )
}  # fmt: skip


@dataclass
class Watch:
    """The rules in use, and which of them are raised. A rule speaks once, and again after it was quiet for a window."""

    rules: list[Rule]
    history: History = field(default_factory=History)
    quiet: dict[str, int] = field(default_factory=dict)

    def add(self, logs: dict[str, Any]) -> list[dict[str, Any]]:
        """Take a training log; the alarms that are new with it, as `metrics.jsonl` has them."""
        self.history.add(logs)
        alarms = []
        for rule in self.rules:
            value = rule.measure(self.history)
            over = value is not None and value > rule.threshold
            if value is not None and over and self.quiet.get(rule.name, WINDOW) >= WINDOW:
                alarms.append(rule.alarm(value))
            self.quiet[rule.name] = 0 if over else self.quiet.get(rule.name, WINDOW) + 1
        return alarms


def chosen_rules(settings: dict[str, Any] | None, action: str = "warn") -> list[Rule]:
    """The rules as a recipe wants them; `ValueError` names the setting that is wrong.

    `settings` have by rule `false` to leave it out, a threshold, or `{threshold: ..., action: ...}`; `action` is that of the
    rules that name none, and `"none"` means that there are no rules.
    """
    if action == "none":
        return []
    rules: list[Rule] = []
    settings = settings or {}
    for name in settings.keys() - RULES.keys():
        raise ValueError(f"health_rules has no rule {name!r}.{did_you_mean(name, RULES)} Known: {', '.join(RULES)}.")
    for name, rule in RULES.items():
        if (wanted := settings.get(name, {})) is False:
            continue
        wanted = wanted if isinstance(wanted, dict) else {"threshold": wanted}
        found = {"threshold": rule.threshold, "action": action, **wanted}
        if set(found) != {"threshold", "action"} or type(found["threshold"]) not in (int, float):
            raise ValueError(f"health_rules: {name} is false, a number, or {{threshold: NUMBER, action: ACTION}}.")
        if (chosen := found["action"]) not in ACTIONS:
            raise ValueError(f"health_rules: the action of {name} is one of {', '.join(ACTIONS)}; got {chosen!r}.")
        rules.append(replace(rule, **found))
    return rules


def repeats_itself(text: str) -> bool:
    """Whether a text of some length says the same again and again: it shrinks to less than a tenth when compressed."""
    data = text.encode("utf-8", "replace")[:4000]
    return len(data) >= 200 and len(zlib.compress(data, 1)) < len(data) / 10
