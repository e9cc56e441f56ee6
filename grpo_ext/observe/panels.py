"""Which curves a run has: the panels of the report's page and of its pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from grpo_ext.observe.read_run import RunData

MOST_POINTS = 2000  # of a curve; neighbours of longer ones are averaged
Values = list[float | None]
Column = tuple[list[int], Values]  # steps, and a value at each
Bounds = tuple[float, float]


@dataclass
class Series:
    """One curve: values by step, with standard errors or with the spread of the groups where there are any.

    `smoothed` is false where every value means something by itself, as in a schedule. A band of the spread ends at `bounds`,
    the lowest and highest value that there was.
    """

    label: str
    steps: list[int]
    values: Values
    errors: Values | None = None
    spread: Values | None = None
    bounds: Bounds | None = None
    smoothed: bool = True


@dataclass
class Panel:
    """Curves that are drawn together, and a sentence that says how to read them."""

    title: str
    note: str
    series: list[Series] = field(default_factory=list)

    @property
    def in_words(self) -> str | None:
        """What there is to say where a curve shows nothing: at most one value each, or, but for rewards, 0 throughout."""
        known = [(s, [(t, v) for t, v in zip(s.steps, s.values, strict=True) if v is not None]) for s in self.series]
        if all(len(points) <= 1 for _, points in known):
            said = (f"{s.label} {value:.4g} at step {step}" for s, points in known for step, value in points)
            return ", ".join(said) or "no finite value"
        silent = "reward" not in self.title.lower() and not any(value for _, points in known for _, value in points)
        return "0 throughout" if silent else None


# title, note, and the curves as label and metric; the first of several metrics that was logged is taken
PANELS: tuple[tuple[str, str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    ("Groups, by whether their rewards differ",
     "Only a group whose rewards differ teaches. Three shares are by the outcome reward, the last is by the weighted sum.",
     (("differ", ("groups/mixed",)), ("all equal, right", ("groups/all_right",)), ("all equal, wrong", ("groups/all_wrong",)),
      ("sum all equal", ("frac_reward_zero_std",)))),
    ("Completion length, tokens", "A steady climb to the limit means that the model learns to be cut off.",
     (("mean", ("completions/mean_length",)), ("longest", ("completions/max_length",)))),
    ("Share cut off at the limit", "Completions that ran into max_completion_length.",
     (("cut off", ("completions/clipped_ratio",)),)),
    ("Entropy, nats a token", "Near zero the model has stopped exploring.", (("entropy", ("entropy",)),)),
    ("KL to the reference", "How far the policy has moved; logged where beta is above 0.", (("KL", ("kl",)),)),
    ("Clipped tokens", "Share of tokens whose probability ratio ran into the clip range.",
     (("too low", ("clip_ratio/low_mean",)), ("too high", ("clip_ratio/high_mean", "cispo_clip_ratio")),
      ("either", ("clip_ratio/region_mean",)))),
    ("Sampler and trainer, difference of log-probs",
     "Between the log-prob a token was sampled with and the one it is trained with: next to 0 if all is well.",
     (("mean", ("sampling/logp_difference/mean", "sampling/sampling_logp_difference/mean")),
      ("largest", ("sampling/logp_difference/max", "sampling/sampling_logp_difference/max")))),
    ("Gradient norm", "Before clipping. A sudden rise comes before a collapse.", (("gradient norm", ("grad_norm",)),)),
    ("Loss", "Of little meaning by itself in GRPO.", (("loss", ("loss",)),)),
    ("Learning rate", "As scheduled.", (("learning rate", ("learning_rate",)),)),
)  # fmt: skip
SECONDS = ("seconds/", "time/")
NOT_DRAWN = ("step", "time", "epoch", "total_flos", "num_tokens")
NOT_DRAWN_ENDINGS = ("_se", "_runtime", "_per_second", "/std")


def panels(run: RunData) -> list[Panel]:
    """The panels of a run that have a curve, those that matter most first, and everything else that was logged last."""
    columns = by_metric(run.metrics)
    found = [*rewards(run, columns), held_out(columns)]
    for title, note, lines in PANELS:
        chosen = [(label, next((key for key in keys if key in columns), None)) for label, keys in lines]
        found.append(Panel(title, note, [series(label, columns[key]) for label, key in chosen if key]))
    return [panel for panel in (*found, seconds(columns)) if panel.series]


def more_panels(run: RunData) -> list[Panel]:
    """A panel for each metric that is in none of `panels`."""
    columns = by_metric(run.metrics)
    shown = {key for _, _, lines in PANELS for _, keys in lines for key in keys}
    shown |= {"reward", "reward_std", "step_time", *NOT_DRAWN}
    elsewhere = (*SECONDS, "eval_", "train_", "rewards/")
    rest = [key for key in columns.keys() - shown if not key.startswith(elsewhere)]
    return [Panel(key, "", [series(key, columns[key])]) for key in sorted(rest) if not key.endswith(NOT_DRAWN_ENDINGS)]


def by_metric(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """Steps and values of every metric that is a number, in order."""
    columns: dict[str, Column] = {}
    for row in rows:
        for key in {**row, **row.get("not_finite", {})}:
            value = row.get(key)
            gap = value is None and key in row.get("not_finite", {})
            if gap or (isinstance(value, int | float) and not isinstance(value, bool)):
                steps, values = columns.setdefault(key, ([], []))
                steps.append(row["step"])
                values.append(value if value is not None and math.isfinite(value) else None)
    return columns


def series(
    label: str,
    column: Column,
    errors: Column | None = None,
    spread: Values | None = None,
    bounds: Bounds | None = None,
) -> Series:
    steps, values = column
    by_step = dict(zip(*errors, strict=True)) if errors else {}
    bars = [by_step.get(step) for step in steps] if by_step else None
    size = -(-len(steps) // MOST_POINTS)
    if size > 1:
        steps = steps[size - 1 :: size] + ([steps[-1]] if len(steps) % size else [])
        values, bars, spread = thinned(values, size), bars and thinned(bars, size), spread and thinned(spread, size)
    return Series(label, list(steps), list(values), bars, spread, bounds, smoothed=label != "learning rate")


def thinned(values: Values, size: int) -> Values:
    """Means of so many neighbours each."""
    cut = [[v for v in values[i : i + size] if v is not None] for i in range(0, len(values), size)]
    return [sum(part) / len(part) if part else None for part in cut]


def rewards(run: RunData, columns: dict[str, Column]) -> list[Panel]:
    """The weighted sum, and each reward, unless there is but one and it is the sum."""
    figures, note = run.figures, ""
    if figures.steps:
        note = " The band is the mean spread (one standard deviation) within a group: without it nothing is learnt."
        curves = [
            series(name, (figures.steps, values), None, figures.spread[name], figures.bounds.get(name))
            for name, values in figures.mean.items()
        ]
    else:
        names = {key.split("/")[1]: key for key in columns if key.startswith("rewards/") and key.endswith("/mean")}
        names |= {"reward": "reward"} if "reward" in columns else {}
        curves = [series(name, columns[key]) for name, key in names.items()]
    total = [curve for curve in curves if curve.label == "reward"]
    parts = [curve for curve in curves if curve.label != "reward"]
    if [curve.values for curve in parts] == [curve.values for curve in total]:
        parts = []
    return [
        Panel("Reward", f"Weighted sum, mean of each step.{note}", total),
        Panel("Reward by function", f"Each reward before its weight.{note}", parts),
    ]


def held_out(columns: dict[str, Column]) -> Panel:
    skipped = (*NOT_DRAWN_ENDINGS, "_length", "num_tokens", "_loss", "entropy", "frac_reward_zero_std", "reward_std")
    keys = [key for key in columns if key.startswith("eval_") and not key.endswith(skipped)]
    keys = [key for key in keys if "completions/" not in key and "clip_ratio" not in key]
    curves = [series(key.removeprefix("eval_"), columns[key], columns.get(f"{key}_se")) for key in keys]
    return Panel("Held-out rewards", "Mean over all held-out prompts; bars are one standard error.", curves)


def seconds(columns: dict[str, Column]) -> Panel:
    curves = [series(key.partition("/")[2], columns[key]) for key in columns if key.startswith(SECONDS)]
    if "step_time" in columns:
        curves.insert(0, series("a step", columns["step_time"]))
    return Panel("Seconds", "Where the time of a step goes, as far as it was logged.", curves)
