"""Draw the panels of the report page as one image, for a README or a paper."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from grpo_ext.common.files import data_yaml
from grpo_ext.observe.panels import Panel, panels
from grpo_ext.observe.read_run import RunData, Series, Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Style = dict[str, Any]  # keyword arguments for matplotlib
RAW: Style = {"linewidth": 0.7, "alpha": 0.3}
BAND: Style = {"alpha": 0.13, "linewidth": 0}
DASHES = ("-", "--", ":", "-.")
FEW = 25  # the maximum number of values of a noisy curve that is drawn with dots and error bars
COLORS = (  # the colors of the report page
    "#1f4e8c",
    "#bf5a2a",
    "#1f7a6d",
    "#8a5a9e",
    "#b08a1e",
    "#5b8fb9",
    "#a33e5c",
    "#8b867c",
)
LOOK = data_yaml("grpo_ext.observe", "look.yaml")


def plot_runs(runs: list[RunData], out: Path, most: int | None = None) -> None:
    """Draw the panels of one or several runs, and save them as one image.

    Panels that show no change are left out. A constant reward is still shown (see `Panel.silent`).

    Args:
        runs: the runs to draw; panels with the same title share a plot.
        out: the image file to write; its suffix determines the format.
        most: the maximum number of panels to draw, starting with the most important; `None` draws
            all.

    Raises:
        ValueError: if matplotlib does not support the format.
        OSError: if the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels_of_runs: list[dict[str, Panel]] = []
    titles: dict[str, None] = {}
    for run in runs:
        by_title = {panel.title: panel for panel in panels(run) if not panel.silent}
        panels_of_runs.append(by_title)
        titles.update(dict.fromkeys(by_title))
    shown_titles = list(titles)[:most]
    height = -(-len(shown_titles) // 3) or 1
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(
            height,
            3,
            figsize=(13, 3.1 * height),
            layout="constrained",
            squeeze=False,
        )
        for axis in axes.flat[len(shown_titles) :]:
            axis.set_visible(False)
        for axis, title in zip(axes.flat, shown_titles, strict=False):
            panel_of_runs = [by_title.get(title) for by_title in panels_of_runs]
            draw_panel(axis, title, panel_of_runs)
        if len(runs) > 1:
            handles = []
            for number, run in enumerate(runs):
                if panels_of_runs[number]:
                    style = style_of(0, number)
                    handles.append(legend_line(run.name, style))
            longest = max(len(run.name) for run in runs)
            columns = max(1, min(4, 150 // (longest + 6)))
            figure.legend(handles=handles, loc="outside upper left", ncols=columns)
        figure.savefig(out, dpi=110)
        plt.close(figure)


def draw_panel(axis: "Axes", title: str, panel_of_runs: list[Panel | None]) -> None:
    """Draw one panel for all runs, with a legend if the curves have several labels.

    If several curves of a run have the same values, only the first is drawn.

    Args:
        axis: the plot to draw into.
        title: the title of the panel.
        panel_of_runs: the panel of each run; `None` for a run without it.
    """
    several_runs = len(panel_of_runs) > 1
    labels: list[str] = []
    for run, panel in enumerate(panel_of_runs):
        drawn_values: list[Values] = []
        for series in panel.series if panel is not None else ():
            if series.values in drawn_values:
                continue
            drawn_values.append(series.values)
            if series.label not in labels:
                labels.append(series.label)
            number = labels.index(series.label)
            draw(axis, series, style_of(number, run if several_runs else None))
    legend_rows = (len(labels) + 1) // 2 if len(labels) > 1 else 0
    # Raise the title to make room for the legend below it.
    axis.set_title(title, family="serif", pad=6 + 13 * legend_rows)
    if not legend_rows:
        return
    handles = []
    for number, label in enumerate(labels):
        style = style_of(number, None)
        if several_runs:
            style = {**style_of(number, 0), "color": LOOK["xtick.color"]}
        handles.append(legend_line(label, style))
    axis.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0,
        ncols=2,
    )


def legend_line(label: str, style: Style) -> "Line2D":
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def style_of(series: int, run: int | None) -> Style:
    """Return the line style for a curve.

    With a single run, the series differ in color; once all colors are used, they repeat with
    another dash pattern. With several runs, the color shows the run, and the dash pattern shows the
    series.

    Args:
        series: the number of the series in its panel, starting at 0.
        run: the number of the run, starting at 0; `None` if there is only one run.
    """
    if run is None:
        color = series
        dash = series // len(COLORS)
    else:
        color = run
        dash = series
    return {
        "color": COLORS[color % len(COLORS)],
        "linestyle": DASHES[dash % len(DASHES)],
        "linewidth": 1.7,
    }


def draw(axis: "Axes", series: Series, style: Style) -> None:
    """Draw a curve and, if it has a spread, a band from one spread below to one spread above it.

    An exact curve (`smoothed` is `False`) is drawn as a plain line. A noisy curve of at most `FEW`
    values is drawn as dots joined by lines, with error bars if its errors are known; a longer one
    is drawn as a smoothed line over the raw line. The band is clipped to the curve's `bounds`, if
    it has them.

    Args:
        axis: the plot to draw into.
        series: the curve.
        style: the line style, from `style_of`.
    """
    steps = series.steps
    values = [math.nan if value is None else value for value in series.values]
    spread = zero_for_none(series.spread)
    if not series.smoothed:
        axis.plot(steps, values, **style)
    elif len(values) <= FEW:
        axis.errorbar(
            steps,
            values,
            yerr=zero_for_none(series.errors),
            marker="o",
            markersize=4,
            capsize=2,
            **style,
        )
    else:
        axis.plot(steps, values, color=style["color"], **RAW)
        values = smooth(values)
        if spread is not None:
            spread = smooth(spread)
        axis.plot(steps, values, **style)
    if spread is not None:
        lowest, highest = series.bounds or (-math.inf, math.inf)
        low = np.maximum(np.subtract(values, spread), lowest)
        high = np.minimum(np.add(values, spread), highest)
        axis.fill_between(steps, low, high, color=style["color"], **BAND)


def zero_for_none(values: Values | None) -> list[float] | None:
    if not values:
        return None
    return [value or 0.0 for value in values]


def smooth(values: list[float], weight: float = 0.8) -> list[float]:
    """Return the bias-corrected exponential moving average of `values`; NaNs stay NaN.

    `weight` is the weight of the previous average; 0 disables smoothing.
    """
    raw = pd.Series(values, dtype=float)
    means = raw.ewm(alpha=1 - weight, ignore_na=True).mean()
    return means.where(raw.notna()).tolist()
