"""Curves as a picture, for a README or a paper: the panels of the report's page."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_ext.common.files import data_yaml
from grpo_ext.observe.panels import Panel, panels
from grpo_ext.observe.read_run import RunData, Series

LINE, RAW, BAND = {"linewidth": 1.7}, {"linewidth": 0.7, "alpha": 0.3}, {"alpha": 0.13, "linewidth": 0}
DASHES = ("-", "--", ":", "-.")
FEW = 25  # values at most that are drawn as dots, with error bars if they have any
COLOURS = ("#1f4e8c", "#bf5a2a", "#1f7a6d", "#8a5a9e", "#b08a1e", "#5b8fb9", "#a33e5c", "#8b867c")  # those of the page
LOOK = data_yaml("grpo_ext.observe", "look.yaml")


def plot_runs(runs: list[RunData], out: Path, most: int | None = None) -> None:
    """Draw the panels of the runs, or only the `most` important ones, overlaid; the suffix of `out` says the format."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = [[panel for panel in panels(run) if not panel.silent] for run in runs]
    titles = list(dict.fromkeys(panel.title for some in found for panel in some))[:most]
    height = -(-len(titles) // 3) or 1
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(height, 3, figsize=(13, 3.1 * height), layout="constrained", squeeze=False)
        for axis, title in zip(axes.flat, titles, strict=False):
            for number, (run, some) in enumerate(zip(runs, found, strict=True)):
                panel = next((panel for panel in some if panel.title == title), Panel(title, ""))
                for at, series in enumerate(panel.series):
                    if any(series.values == other.values for other in panel.series[:at]):
                        continue
                    color, dash, label = (number, at, run.name) if len(runs) > 1 else (at, 0, series.label)
                    label += f", {series.label}" if len(runs) > 1 and len(panel.series) > 1 else ""
                    draw(axis, series, label, color, dash)
            count = len(axis.get_legend_handles_labels()[1])
            rows = (count + 1) // 2 if count > 1 and len(runs) == 1 else 0  # of the legend, between title and curves
            axis.set_title(title, family="serif", pad=6 + 13 * rows)
            if count > 1:  # the names of several runs have no room there
                axis.legend(**{"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0, "ncols": 2} if rows else {})
        for axis in list(axes.flat)[len(titles) :]:
            axis.set_visible(False)
        figure.savefig(out, dpi=110)
        plt.close(figure)


def draw(axis: Any, series: Series, label: str, color: int, dash: int) -> None:
    """Draw few points as dots with error bars, many as a smoothed line over the raw one, and the spread as a band."""
    look = {"color": COLOURS[color % len(COLOURS)], "linestyle": DASHES[dash % len(DASHES)]}
    steps, values = series.steps, [float("nan") if value is None else value for value in series.values]
    spread = [value or 0.0 for value in series.spread] if series.spread else None
    if not series.smoothed:
        axis.plot(steps, values, label=label, **LINE, **look)
    elif len(values) <= FEW:
        errors = [value or 0.0 for value in series.errors] if series.errors else None
        axis.errorbar(steps, values, yerr=errors, marker="o", markersize=4, capsize=2, label=label, **LINE, **look)
    else:
        axis.plot(steps, values, color=look["color"], **RAW)
        values, spread = smooth(values), spread and smooth(spread)
        axis.plot(steps, values, label=label, **LINE, **look)
    if spread:
        least, most = series.bounds or (-math.inf, math.inf)
        low = [max(value - s, least) for value, s in zip(values, spread, strict=True)]
        high = [min(value + s, most) for value, s in zip(values, spread, strict=True)]
        axis.fill_between(steps, low, high, color=look["color"], **BAND)


def smooth(values: list[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average, corrected for its start: the first value stays as it is, and so do NaNs."""
    given = pd.Series(values, dtype=float)
    return given.ewm(alpha=1 - weight, ignore_na=True).mean().where(given.notna()).tolist()
