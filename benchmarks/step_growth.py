"""How a step's time grows with completion length and group size, and when sharing prompts pays."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.step_bench import SIDES, Bench, measure
from tests.support.step_work import Case

SMALL = Case(16, 8, 8, (150, 150), (100, 0.6, 256), 0.0, 2000, hidden=64)
LENGTHS = {
    n: replace(SMALL, completion=(n / 2.5, 0.6, n)) for n in (128, 256, 512, 1024, 2048, 4096)
}
GROUPS = {g: replace(SMALL, rows=64, micro_batch=64, group=g) for g in (4, 8, 16, 32, 64)}
PROMPTS = {
    n: replace(SMALL, rows=32, micro_batch=32, prompt=(n, n), completion=(128, 0.0, 128))
    for n in (2, 8, 32, 128, 512, 1024)
}
SHARED = ("not shared", "shared")


def growth(path: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Return three tables of medians, and plot them.

    The third is ours with and without shared prompts.
    """
    found = {
        "longest completion": {n: table_row(measure(case, rounds)) for n, case in told(LENGTHS)},
        "num_generations": {n: table_row(measure(case, rounds)) for n, case in told(GROUPS)},
        "prompt tokens, completions of 128": {
            n: with_and_without(case, rounds) for n, case in told(PROMPTS)
        },
    }
    for label, rows in found.items():
        for n, row in rows.items():
            print(f"{label} {n:>5}: {row}", flush=True)
    plot(found, path)
    return found


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Plot one panel per table, both axes logarithmic."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for axis, (label, rows) in zip(axes, found.items(), strict=True):
        numbers = list(map(int, rows))
        seconds = []
        for side in SHARED if "prompt" in label else SIDES:
            seconds += [row[f"{side} s"] for row in rows.values()]
            axis.loglog(numbers, seconds[-len(rows) :], "o-", label=side)
        ticks = [base * 10.0**power for power in (-2, -1, 0, 1) for base in (1, 2, 5)]
        ticks = [tick for tick in ticks if min(seconds) / 2 < tick < max(seconds) * 2]
        axis.minorticks_off()
        axis.set_xticks(numbers, numbers)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set(xlabel=label, ylabel="seconds a step")
        axis.legend()
    figure.savefig(path, dpi=100)


def told(cases: dict[int, Case]) -> Any:
    """Yield the cases, and print each as it begins."""
    for n, case in cases.items():
        print(f"{n} ...", flush=True)
        yield n, case


def table_row(row: dict[str, Any]) -> dict[str, float]:
    return {name: round(row[name], 3) for name in ("TRL s", "ours s", "ratio")}


def with_and_without(case: Case, rounds: int) -> dict[str, float]:
    """Return our seconds with and without shared prompts, and their ratio."""
    benches = {side: Bench(case, ("ours",)) for side in SHARED}
    trainer: Any = benches["not shared"].trainers["ours"]
    scorer = trainer.parts.scorer
    scorer.layout = replace(scorer.layout, shares=False)
    seconds: dict[str, list[float]] = {side: [] for side in SHARED}
    for number in range(rounds + 1):
        for side in SHARED if number % 2 else SHARED[::-1]:
            taken = benches[side].step("ours")[0]
            if number:
                seconds[side].append(taken)
    ratio = statistics.median(
        a / b for a, b in zip(seconds["not shared"], seconds["shared"], strict=True)
    )
    return {
        **{f"{side} s": round(statistics.median(seconds[side]), 3) for side in SHARED},
        "ratio": round(ratio, 3),
    }
