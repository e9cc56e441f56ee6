"""Scores of completions, their means with standard errors, and paired comparisons of two models on the same rows."""

import asyncio
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from grpo_ext.evaluation.completions import Completion

Row = dict[str, Any]
Rewards = dict[str, Any]  # reward name -> callable with TRL's signature
RESERVED = {"prompt", "completion", "completion_ids"}


@dataclass(frozen=True)
class Sample:
    """One completion of one row: the score of each reward (`None`: not scored), the length in tokens, and why it ended.

    `episode` is what `samples.jsonl` has of an episode.
    """

    row: int
    text: str
    rewards: dict[str, float | None]
    length: int
    finish_reason: str = "stop"
    episode: Row | None = None


Value = Callable[[Sample], float | None]


def score_completions(
    rows: list[Row], completions: list[list[Completion]], rewards: Rewards, extras: Row | None = None
) -> list[Sample]:
    """Return a sample for each completion, with the scores of all rewards, async ones included.

    `rows` have `prompt` and the columns of the rewards. `extras` are further arguments of every reward, such as TRL's
    `trainer_state`, `log_extra` and `log_metric`.
    """
    flat = [(i, c) for i, group in enumerate(completions) for c in group]
    if not flat:
        return []
    prompts, texts, whole = map(list, zip(*(c.for_rewards(rows[i]) for i, c in flat), strict=True))
    columns = {key: [row[key] for row in whole] for key in whole[0] if key not in RESERVED}
    given = {"prompts": prompts, "completion_ids": [c.ids for _, c in flat], **columns, **(extras or {})}
    by_name = {}
    for name, reward in rewards.items():
        values = reward(completions=texts, **given)
        by_name[name] = asyncio.run(values) if inspect.iscoroutine(values) else values
    return [
        Sample(i, c.text, {name: values[j] for name, values in by_name.items()}, c.length, c.finish_reason)
        for j, (i, c) in enumerate(flat)
    ]


def mean_and_error(samples: list[Sample], value: Value) -> tuple[float | None, float | None]:
    """Return the mean of `value(sample)` over rows, and its standard error; samples of one row are averaged first."""
    return over_rows(list(row_means(samples, value).values()))


def by_row(samples: list[Sample], value: Value) -> dict[int, list[Any]]:
    """Return the values of the samples of each row, without `None`."""
    found: dict[int, list[Any]] = {}
    for sample in samples:
        if (v := value(sample)) is not None:
            found.setdefault(sample.row, []).append(v)
    return found


def row_means(samples: list[Sample], value: Value) -> dict[int, float]:
    """Return the mean of `value(sample)` over the samples of each row, without `None`."""
    return {row: fmean(values) for row, values in by_row(samples, value).items()}


def over_rows(values: list[float]) -> tuple[float | None, float | None]:
    """Return the mean of one value for each row, and its standard error s / sqrt(rows) (s: sample standard deviation)."""
    if not values:
        return None, None
    n, mean = len(values), fmean(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else None


def summarize(samples: list[Sample], names: list[str]) -> dict[str, float | None]:
    """Return the mean of each reward with its standard error under `NAME_se`, and the mean length."""
    summary: dict[str, float | None] = {}
    for name in names:
        summary[name], summary[f"{name}_se"] = mean_and_error(samples, score_of(name))
    summary["length"], _ = mean_and_error(samples, lambda s: s.length)
    return summary


def score_of(name: str) -> Value:
    """Return the function that reads the score of the reward `name`."""
    return lambda sample: sample.rewards[name]


def passes(sample: Sample, name: str) -> bool:
    """Whether a completion passes: the reward `name` gave it a score of 1 or more."""
    return (sample.rewards[name] or 0) >= 1


def pass_at_k(samples: list[Sample], name: str, k: int) -> tuple[float | None, float | None]:
    """Return the unbiased estimate of pass@k, the chance that one of k completions passes, and its standard error.

    It is the mean over rows of 1 - C(n - c, k) / C(n, k) for n samples of which c pass (Chen et al. 2021, arXiv 2107.03374,
    equation 1). `ValueError` if a row has fewer than k samples.
    """
    estimates = []
    for passed in by_row(samples, lambda sample: passes(sample, name)).values():
        n, c = len(passed), sum(passed)
        if n < k:
            raise ValueError(f"pass@{k} needs {k} samples a row, got {n}.")
        estimates.append(1 - math.comb(n - c, k) / math.comb(n, k))
    return over_rows(estimates)


def outcome_figures(samples: list[Sample], name: str, k: int) -> dict[str, float | None]:
    """Return the figures of the outcome reward `name` for `k` samples of each row.

    They are `pass@1`, and for k above 1 `mean@k`, the mean reward, `pass@k`, and `mixed@k`, the `mixed_share`; each with its
    standard error under `..._se` (`None` for a single row).
    """
    figures = {"pass@1": pass_at_k(samples, name, 1)}
    if k > 1:
        figures[f"mean@{k}"] = mean_and_error(samples, score_of(name))
        figures[f"pass@{k}"] = pass_at_k(samples, name, k)
        figures[f"mixed@{k}"] = mixed_share(samples, name)
    return {key: v for name, pair in figures.items() for key, v in zip((name, f"{name}_se"), pair, strict=True)}


def mixed_share(samples: list[Sample], name: str) -> tuple[float | None, float | None]:
    """Return the share of rows whose samples got different scores from the reward `name`, and its standard error.

    For k samples of a row it estimates the share of groups with signal in training with `num_generations` k.
    """
    rows = by_row(samples, score_of(name)).values()
    return over_rows([float(len(set(map(np.float32, scores))) > 1) for scores in rows])  # float32: as the trainer compares


def bootstrap_interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a mean (Efron and Tibshirani 1993, chapter 13), by a fixed seed.

    `values` has one value for each row, since rows are resampled. `ValueError` if it is empty.
    """
    if not values:
        raise ValueError("a bootstrap interval needs at least one value.")
    rng = np.random.default_rng(0)
    rows = np.asarray(values, dtype=np.float64)  # (n,)
    low, high = np.quantile([rng.choice(rows, len(rows)).mean() for _ in range(resamples)], [0.025, 0.975])
    return float(low), float(high)


def paired_difference(before: list[Sample], after: list[Sample], value: Value, resamples: int = 2000) -> dict[str, Any] | None:
    """Return how much `value` increases from before to after, row by row, so that the difficulty of rows cancels out.

    The keys are `mean`, the bounds `low` and `high` of its bootstrap interval, and `rows`, the number of rows with both values;
    `None` if there are no such rows.
    """
    first, second = row_means(before, value), row_means(after, value)
    differences = [second[row] - first[row] for row in first if row in second]
    if not differences:
        return None
    low, high = bootstrap_interval(differences, resamples)
    return {"mean": fmean(differences), "low": low, "high": high, "rows": len(differences)}


def changed_rows(before: list[Sample], after: list[Sample], right: Callable[[Sample], bool]) -> dict[str, list[int]]:
    """Return the rows that became right and those that became wrong, from one sample of each row."""
    was, now = ({s.row: right(s) for s in samples} for samples in (before, after))
    rows = sorted(was.keys() & now.keys())
    return {
        "became_right": [row for row in rows if now[row] and not was[row]],
        "became_wrong": [row for row in rows if was[row] and not now[row]],
    }


def compare(before: dict[str, list[Sample]], after: dict[str, list[Sample]], names: list[str], outcome: str) -> dict[str, Any]:
    """Return all differences of the rewards `names` between two evaluations of the same rows.

    `{"greedy": {"countdown": {"mean": 0.1, "low": 0.05, "high": 0.15, "rows": 189}, ..., "length": {...}}, "sampled": {...},
    "became_right": [3, 17], "became_wrong": [5]}`. A row with a score of 1 or more by the reward `outcome` is solved.
    """
    found: dict[str, Any] = {}
    for part in ("greedy", "sampled"):
        if part not in before or part not in after:
            continue
        pairs = {name: paired_difference(before[part], after[part], score_of(name)) for name in names}
        pairs["length"] = paired_difference(before[part], after[part], lambda s: s.length)
        found[part] = {name: difference for name, difference in pairs.items() if difference is not None}
    if outcome in names:
        found |= changed_rows(before["greedy"], after["greedy"], lambda s: passes(s, outcome))
    return found
