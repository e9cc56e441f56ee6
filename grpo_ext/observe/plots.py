"""Curves as a picture, for a README or a paper: the panels of the report's page."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_ext.common.files import data_yaml
from grpo_ext.observe.panels import Panel, panels
from grpo_ext.observe.read_run import RunData, Series

RAW = {"linewidth": 0.7, "alpha": 0.3}
BAND = {"alpha": 0.13, "linewidth": 0}
DASHES = ("-", "--", ":", "-.")
FEW = 25  # values at most that are drawn as dots, with error bars if they have any
COLOURS = (
    "#1f4e8c",
    "#bf5a2a",
    "#1f7a6d",
    "#8a5a9e",
    "#b08a1e",
    "#5b8fb9",
    "#a33e5c",
    "#8b867c",
)  # those of the page
LOOK = data_yaml("grpo_ext.observe", "look.yaml")


def plot_runs(runs: list[RunData], out: Path, most: int | None = None) -> None:
    """Draw the panels of the runs, or only the `most` important ones, overlaid; the suffix of `out`
    says the format.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    found = [[panel for panel in panels(run) if not panel.silent] for run in runs]
    titles = list(dict.fromkeys(panel.title for some in found for panel in some))[:most]
    height = -(-len(titles) // 3) or 1
    several = len(runs) > 1
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(
            height, 3, figsize=(13, 3.1 * height), layout="constrained", squeeze=False
        )
        for axis, title in zip(axes.flat, titles, strict=False):
            names: list[str] = []
            for number, some in enumerate(found):
                panel = next((panel for panel in some if panel.title == title), Panel(title, ""))
                for at, series in enumerate(panel.series):
                    if any(series.values == other.values for other in panel.series[:at]):
                        continue
                    if series.label not in names:
                        names.append(series.label)
                    draw(
                        axis,
                        series,
                        **style_of(names.index(series.label), number if several else None),
                    )
            # of the legend, between the title and the curves
            rows = (len(names) + 1) // 2 if len(names) > 1 else 0
            axis.set_title(title, family="serif", pad=6 + 13 * rows)
            if rows:
                plain = {"color": LOOK["xtick.color"]} if several else {}
                styles = [style_of(n, 0 if several else None) | plain for n in range(len(names))]
                lines = [
                    Line2D([], [], label=name, **style)
                    for name, style in zip(names, styles, strict=True)
                ]
                axis.legend(
                    handles=lines, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, ncols=2
                )
        for axis in list(axes.flat)[len(titles) :]:
            axis.set_visible(False)
        if several:
            lines = [
                Line2D([], [], label=run.name, **style_of(0, n))
                for n, run in enumerate(runs)
                if found[n]
            ]
            longest = max(len(run.name) for run in runs)
            figure.legend(
                handles=lines, loc="outside upper left", ncols=max(1, min(4, 150 // (longest + 6)))
            )
        figure.savefig(out, dpi=110)
        plt.close(figure)


def style_of(series: int, run: int | None) -> dict[str, Any]:
    """Return the style of a series: its own colour for one run (`run` is `None`), else the colour
    of its run and own dashes.
    """
    color, dash = (series, series // len(COLOURS)) if run is None else (run, series)
    return {
        "color": COLOURS[color % len(COLOURS)],
        "linestyle": DASHES[dash % len(DASHES)],
        "linewidth": 1.7,
    }


def draw(axis: Any, series: Series, **style: Any) -> None:
    """Draw few points as dots with error bars, many as a smoothed line over the raw one, and the
    spread as a band.
    """
    steps = series.steps
    values = [float("nan") if value is None else value for value in series.values]
    spread = [value or 0.0 for value in series.spread] if series.spread else None
    if not series.smoothed:
        axis.plot(steps, values, **style)
    elif len(values) <= FEW:
        errors = [value or 0.0 for value in series.errors] if series.errors else None
        axis.errorbar(steps, values, yerr=errors, marker="o", markersize=4, capsize=2, **style)
    else:
        axis.plot(steps, values, color=style["color"], **RAW)
        values = smooth(values)
        spread = spread and smooth(spread)
        axis.plot(steps, values, **style)
    if spread:
        least, most = series.bounds or (-math.inf, math.inf)
        low = [max(value - s, least) for value, s in zip(values, spread, strict=True)]
        high = [min(value + s, most) for value, s in zip(values, spread, strict=True)]
        axis.fill_between(steps, low, high, color=style["color"], **BAND)


def smooth(values: list[float], weight: float = 0.8) -> list[float]:
    """Return the exponential moving average, corrected for its start: the first value stays as it
    is, and so do NaNs.
    """
    given = pd.Series(values, dtype=float)
    return given.ewm(alpha=1 - weight, ignore_na=True).mean().where(given.notna()).tolist()
