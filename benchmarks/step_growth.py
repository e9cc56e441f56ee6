"""How a step's seconds grow with the length of completions and the size of groups, ours and TRL's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from step_bench import SIDES, measure
from step_work import UNEVEN


def growth(path: Path, rounds: int) -> dict[str, list[Any]]:
    """Seconds against completion length and group size, as a plot and a table."""
    import matplotlib.pyplot as plt

    small = replace(UNEVEN, rows=16, vocab=2000, layers=2)
    lengths = {n: replace(small, completion=(n / 2.5, 0.6, n)) for n in (128, 256, 512, 1024, 2048, 4096)}
    sizes = {g: replace(small, rows=64, group=g, completion=(100, 0.6, 256)) for g in (4, 8, 16, 32, 64)}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    found = {}
    for axis, label, cases in zip(axes, ("longest completion", "num_generations"), (lengths, sizes), strict=True):
        rows = {str(n): measure(case, rounds) for n, case in cases.items()}
        for side in SIDES:
            axis.loglog(list(cases), [row[f"{side} s"] for row in rows.values()], "o-", label=side)
        axis.set(xlabel=label, ylabel="seconds a step", xticks=list(cases), xticklabels=list(cases))
        axis.minorticks_off()
        axis.legend()
        found[label] = {n: {k: row[k] for k in ("TRL s", "ours s", "ratio")} for n, row in rows.items()}
        for n, row in rows.items():
            print(
                f"{label} {n:>5}: TRL {row['TRL s']:.2f} s, ours {row['ours s']:.2f} s, {row['ratio']:.2f} x",
                flush=True,
            )
    figure.savefig(path, dpi=120)
    return found
