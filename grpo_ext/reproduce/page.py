"""Show outcomes as tables in the terminal, and on the page `claims.html`, which has plots."""

from __future__ import annotations

import base64
import html
import io
import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from grpo_ext.common.estimates import Estimate
from grpo_ext.common.files import data_lines, write_atomically
from grpo_ext.observe.plots import COLORS, LOOK, smooth
from grpo_ext.reproduce.measures.base import SMOOTHING, Array, end_of, steps_of, values_of
from grpo_ext.reproduce.outcomes import Outcome, interval_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = "claims.html"
FIGURES = "claims.json"
CLASSES = {"agrees": "agrees", "does not": "differs", "cannot be seen": "unseen"}  # in page.css
# The page has no script, and loads nothing.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def as_figure(estimate: Estimate | None) -> str:
    """Format an estimate with its standard error (if known and not 0); return `""` for `None`."""
    if estimate is None:
        return ""
    if not estimate.error:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3g} ± {estimate.error:.2g}"


def print_table(outcomes: list[Outcome]) -> None:
    """Print a table for each experiment, then the reason for each verdict that has one."""
    from rich import print
    from rich.markup import escape

    from grpo_ext.evaluation.table import print_grid

    columns = ["claim", "published", "here", "expected", "verdict"]
    for experiment, of_experiment in by_experiment(outcomes).items():
        rows = []
        for outcome in of_experiment:
            claim = outcome.claim
            cells = [
                claim.name,
                claim.published,
                as_figure(outcome.estimate),
                str(claim.expected),
                outcome.verdict,
            ]
            rows.append(cells)
        print_grid(f"{experiment}: mean ± standard error over seeds", columns, rows, left=2)
    for outcome in outcomes:
        if outcome.why:
            print(f"[bold]{outcome.claim.name}[/bold]: {escape(outcome.why)}")


def by_experiment(outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes by experiment; experiments and outcomes keep their order."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.experiment, []).append(outcome)
    return groups


def write_page(outcomes: list[Outcome], folder: Path, about: str) -> Path:
    """Write the page `claims.html` and the figures in `claims.json`; return the page's path.

    Args:
        outcomes: the outcomes of all claims.
        folder: the folder for both files.
        about: a line of text that describes the runs.
    """
    figures = [as_json(outcome) for outcome in outcomes]
    figures_json = json.dumps(figures, indent=1, ensure_ascii=False)
    write_atomically(folder / FIGURES, figures_json + "\n")
    counts = Counter[str](outcome.verdict for outcome in outcomes)
    summary = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in CLASSES)
    style = "\n".join(data_lines("grpo_ext.reproduce", "page.css"))
    body = [f"<h1>Published and here</h1><p>{html.escape(about)}</p><p>{summary}</p>"]
    for name, of_experiment in by_experiment(outcomes).items():
        body.append(f"<h2>{name}</h2>")
        body += map(section, of_experiment)
    page = folder / PAGE
    write_atomically(
        page,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>Published and here</title><style>{style}</style></head>"
        f"<body>{''.join(body)}</body></html>\n",
    )
    return page


def section(outcome: Outcome) -> str:
    """Return the HTML section about an outcome's claim, with its figures, verdict and plots."""
    claim = outcome.claim
    measured = as_figure(outcome.estimate)
    if outcome.estimate is not None and outcome.estimate.low is not None:
        measured += f", interval {interval_of(outcome.estimate)}"
    facts = {
        "published": f"{claim.published} ({claim.place})",
        "here": measured or "no figure",
        "expected": str(claim.expected),
        "the figure": claim.figure,
        "in detail": outcome.details,
        "why": outcome.why,
    }
    rows = ""
    for name, text in facts.items():
        if text:
            rows += f"<dt>{name}</dt><dd>{html.escape(text)}</dd>"
    image = ""
    picture = picture_of(outcome)
    if picture:
        image = f'<img alt="curves of the runs" src="data:image/png;base64,{picture}">'
    return (
        f'<section id="{claim.name}" class="{CLASSES[outcome.verdict]}">'
        f"<h3>{html.escape(claim.claim)} <span>{outcome.verdict}</span></h3>"
        f"<dl>{rows}</dl>{image}</section>"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a mapping of JSON values, with the mean of each seed in `by_seed`."""
    estimate = outcome.estimate
    return {
        "experiment": outcome.experiment,
        "name": outcome.claim.name,
        "claim": outcome.claim.claim,
        "published": outcome.claim.published,
        "expected": str(outcome.claim.expected),
        "mean": estimate and estimate.mean,
        "error": estimate and estimate.error,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "by_seed": [figure.estimate.mean for figure in outcome.by_seed.values()],
        "verdict": outcome.verdict,
        "why": outcome.why,
        "details": outcome.details,
    }


def picture_of(outcome: Outcome) -> str:
    """Return the plots for an outcome's claim as one base64-encoded PNG.

    Returns `""` if the outcome has no runs, or if its claim defines no plots.
    """
    claim = outcome.claim
    if not outcome.runs or not (claim.curves or claim.map):
        return ""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(LOOK):
        count = len(claim.curves) or 1
        figure, axes = plt.subplots(
            ncols=count,
            figsize=(4.6 * count, 2.9),
            layout="constrained",
            squeeze=False,
        )
        if claim.map:
            draw_map(axes[0][0], outcome)
        for axis, metric in zip(axes[0], claim.curves, strict=False):
            draw_curves(axis, outcome, metric)
        file = io.BytesIO()
        figure.savefig(file, dpi=90, format="png")
        plt.close(figure)
    return base64.b64encode(file.getvalue()).decode("ascii")


def draw_curves(axis: Axes, outcome: Outcome, metric: str) -> None:
    """Plot a metric over the steps, for all runs of an outcome.

    For each run, draw the curve of each seed and, on top, the smoothed mean over seeds. All of them
    end with the run's shortest curve. If one of the seeds logged no value, the run is left out.

    Args:
        axis: the axes to draw on.
        outcome: the outcome whose runs are drawn.
        metric: the name of the metric.
    """
    for number, (name, runs) in enumerate(outcome.runs.items()):
        color = COLORS[number % len(COLORS)]
        curves = [values_of(run, metric) for run in runs]
        shortest = min(map(len, curves))
        if not shortest:
            continue
        steps = steps_of(runs[0], metric)[:shortest]
        values = np.array([curve[:shortest] for curve in curves])  # (seeds, N)
        axis.plot(steps, values.T, color=color, linewidth=0.7, alpha=0.3)
        mean = smooth(values.mean(axis=0).tolist(), SMOOTHING)
        axis.plot(steps, mean, color=color, linewidth=1.7, label=name)
    axis.set_title(metric, family="serif")
    if len(outcome.runs) > 1:
        axis.legend()


def draw_map(axis: Axes, outcome: Outcome) -> None:
    """Draw the heat map that an outcome's claim defines: a metric's final value by two recipe keys.

    Each cell shows the mean over seeds. Nothing is drawn if no run logged the metric.
    """
    keys = outcome.claim.map
    assert keys is not None
    cells, rows, columns = table_of_map(outcome)
    if not cells.size:
        return
    axis.imshow(cells, cmap="cividis", aspect="auto")
    middle = (np.nanmin(cells) + np.nanmax(cells)) / 2
    for (i, j), value in np.ndenumerate(cells):
        axis.text(
            j,
            i,
            f"{value:.2f}",
            ha="center",
            va="center",
            color="black" if value > middle else "white",
            fontweight="bold",
        )
    axis.grid(False)
    axis.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
    axis.set_yticks(range(len(rows)), [f"{row:g}" for row in rows])
    axis.set(xlabel=keys.columns, ylabel=keys.rows)
    axis.set_title(f"end of {keys.metric}", family="serif")


def table_of_map(outcome: Outcome) -> tuple[Array, list[float], list[float]]:
    """Return the cells (rows, columns) of a claim's map, and the values of its two recipe keys.

    Each cell is the metric's final value, averaged over seeds; cells without a run are NaN. A key
    that is missing from a run's recipe counts as 0.
    """
    keys = outcome.claim.map
    assert keys is not None
    ends = []
    for run in chain.from_iterable(outcome.runs.values()):
        end = end_of(run, keys.metric)
        if end is None:
            continue
        mean, _ = end
        ends.append(
            {
                "row": float(run.recipe.get(keys.rows) or 0),
                "column": float(run.recipe.get(keys.columns) or 0),
                "end": mean,
            }
        )
    frame = pd.DataFrame(ends, columns=["row", "column", "end"])
    table = frame.pivot_table(index="row", columns="column", values="end")
    return table.to_numpy(), table.index.tolist(), table.columns.tolist()
