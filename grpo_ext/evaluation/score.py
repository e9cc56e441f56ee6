"""Scores of completions, and what they add up to."""

import asyncio
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_ext.evaluation.completions import Completion

Row = dict[str, Any]
Rewards = dict[str, Any]  # reward name -> callable with TRL's signature
RESERVED = {"prompt", "completion", "completion_ids"}


@dataclass(frozen=True)
class Sample:
    """One completion of one row: what each reward said (`None`: not scored), its length in tokens, and why it ended."""

    row: int
    text: str
    rewards: dict[str, float | None]
    length: int
    finish_reason: str = "stop"


Value = Callable[[Sample], float | None]


def score_completions(
    rows: list[Row], completions: list[list[Completion]], rewards: Rewards, extras: Row | None = None
) -> list[Sample]:
    """What each reward, awaited where it is async, says of each completion of rows with `prompt` and the columns that it reads.

    `extras` is what else to pass to every reward, as TRL passes `trainer_state`, `log_extra` and `log_metric`.
    """
    flat = [(i, c) for i, group in enumerate(completions) for c in group]
    if not flat:
        return []
    prompts = [c.prompt(rows[i]) for i, c in flat]
    texts = [c.as_given(prompt) for prompt, (_, c) in zip(prompts, flat, strict=True)]
    whole = [c.columns(rows[i]) for i, c in flat]
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
    """Mean of `value(sample)` over all samples, and its standard error.

    Samples of one row are not independent, so the error is that of the mean of the rows' means.
    """
    return over_rows(list(row_means(samples, value).values()))


def row_means(samples: list[Sample], value: Value) -> dict[int, float]:
    """The mean of `value(sample)` over the samples of each row; `None` is left out."""
    by_row: dict[int, list[float]] = {}
    for sample in samples:
        if (v := value(sample)) is not None:
            by_row.setdefault(sample.row, []).append(float(v))
    return {row: fmean(values) for row, values in by_row.items()}


def over_rows(values: list[float]) -> tuple[float | None, float | None]:
    """Mean of one value a row, and its standard error s / sqrt(rows), s the sample standard deviation."""
    if not values:
        return None, None
    n, mean = len(values), fmean(values)
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else None


def summarize(samples: list[Sample], names: list[str]) -> dict[str, float | None]:
    """Mean of each reward and of the length, and each reward's standard error under `NAME_se`."""
    summary: dict[str, float | None] = {}
    for name in names:
        summary[name], summary[f"{name}_se"] = mean_and_error(samples, score_of(name))
    summary["length"], _ = mean_and_error(samples, lambda s: s.length)
    return summary


def score_of(name: str) -> Value:
    """What the reward `name` gave a sample."""
    return lambda sample: sample.rewards[name]


def passes(sample: Sample, name: str) -> bool:
    """Whether a completion passes by reward `name`: a score of 1 or more. One that was not scored does not."""
    return (sample.rewards[name] or 0) >= 1


def pass_at_k(samples: list[Sample], name: str, k: int) -> tuple[float | None, float | None]:
    """Unbiased estimate of pass@k, the chance that one of k completions passes by reward `name`, and its standard error.

    1 - C(n - c, k) / C(n, k) for n samples of a row of which c pass, averaged over rows (Chen et al. 2021, arXiv
    2107.03374, equation 1). `ValueError` if a row has fewer than k samples.
    """
    by_row: dict[int, list[bool]] = {}
    for sample in samples:
        by_row.setdefault(sample.row, []).append(passes(sample, name))
    estimates = []
    for passed in by_row.values():
        n, c = len(passed), sum(passed)
        if n < k:
            raise ValueError(f"pass@{k} needs {k} samples a row, got {n}.")
        estimates.append(1 - math.comb(n - c, k) / math.comb(n, k))
    return over_rows(estimates)


def outcome_figures(samples: list[Sample], name: str, k: int) -> dict[str, float | None]:
    """What `samples`, `k` of each row, say of the reward `name`, which decides whether a problem is solved.

    `pass@1`, and with more than one sample `mean@k`, the mean of the reward itself, and `pass@k`; each with its standard error
    under `..._se` (`None` with a single row).
    """
    figures = {"pass@1": pass_at_k(samples, name, 1)}
    if k > 1:
        figures[f"mean@{k}"] = mean_and_error(samples, score_of(name))
        figures[f"pass@{k}"] = pass_at_k(samples, name, k)
    return {key: v for name, pair in figures.items() for key, v in zip((name, f"{name}_se"), pair, strict=True)}
