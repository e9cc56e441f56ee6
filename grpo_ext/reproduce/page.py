"""The table on the terminal, and `claims.html` with a picture beside each claim."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from grpo_ext.common.estimates import Estimate
from grpo_ext.common.files import data_lines, write_atomically
from grpo_ext.observe.plots import COLOURS, LOOK, smooth
from grpo_ext.reproduce.measures.base import SMOOTHING, Array, end_of, steps_of, values_of
from grpo_ext.reproduce.outcomes import Outcome, interval_of

PAGE = "claims.html"
FIGURES = "claims.json"
# The page has no script, and loads nothing.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def as_figure(estimate: Estimate | None) -> str:
    """Return a figure with its standard error as text; empty without one."""
    if estimate is None:
        return ""
    if not estimate.error:
        return f"{estimate.mean:.3g}"
    return f"{estimate.mean:.3g} ± {estimate.error:.2g}"


def print_table(outcomes: list[Outcome]) -> None:
    """Print a table of the claims, and below it why some have no verdict."""
    from rich import print
    from rich.markup import escape

    from grpo_ext.evaluation.table import print_grid

    head = ["claim", "published", "here", "expected", "verdict"]
    for experiment in dict.fromkeys(outcome.experiment for outcome in outcomes):
        rows = [
            [
                outcome.claim.name,
                outcome.claim.published,
                as_figure(outcome.estimate),
                str(outcome.claim.expected),
                outcome.verdict,
            ]
            for outcome in outcomes
            if outcome.experiment == experiment
        ]
        print_grid(f"{experiment}: mean ± standard error over seeds", head, rows, left=2)
    for outcome in outcomes:
        if outcome.why:
            print(f"[bold]{outcome.claim.name}[/bold]: {escape(outcome.why)}")


def write_page(outcomes: list[Outcome], folder: Path, about: str) -> Path:
    """Write the page and the figures as JSON; return the page's path.

    `about` says what was run, in one line.
    """
    figures = [as_json(outcome) for outcome in outcomes]
    write_atomically(folder / FIGURES, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    page = folder / PAGE
    counts = {
        verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in CLASSES
    }
    summary = ", ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    style = "\n".join(data_lines("grpo_ext.reproduce", "page.css"))
    body = [f"<h1>Published and here</h1><p>{html.escape(about)}</p><p>{summary}</p>"]
    for name in dict.fromkeys(outcome.experiment for outcome in outcomes):
        body.append(f"<h2>{name}</h2>")
        body += [section(outcome) for outcome in outcomes if outcome.experiment == name]
    write_atomically(
        page,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>Published and here</title><style>{style}</style></head>"
        f"<body>{''.join(body)}</body></html>\n",
    )
    return page


CLASSES = {"agrees": "agrees", "does not": "differs", "cannot be seen": "unseen"}


def section(outcome: Outcome) -> str:
    """Return the HTML of one claim."""
    claim = outcome.claim
    here = as_figure(outcome.estimate)
    if outcome.estimate is not None and outcome.estimate.low is not None:
        here += f", interval {interval_of(outcome.estimate)}"
    facts = {
        "published": f"{claim.published} ({claim.place})",
        "here": here or "no figure",
        "expected": str(claim.expected),
        "the figure": claim.figure,
        "in detail": outcome.details,
        "why": outcome.why,
    }
    rows = "".join(
        f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in facts.items() if text
    )
    picture = picture_of(outcome)
    image = (
        f'<img alt="curves of the runs" src="data:image/png;base64,{picture}">' if picture else ""
    )
    return (
        f'<section id="{claim.name}" class="{CLASSES[outcome.verdict]}">'
        f"<h3>{html.escape(claim.claim)} <span>{outcome.verdict}</span></h3>"
        f"<dl>{rows}</dl>{image}</section>"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a claim."""
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
        "by_seed": [figure.estimate.mean for figure in outcome.by_seed],
        "verdict": outcome.verdict,
        "why": outcome.why,
        "details": outcome.details,
    }


def picture_of(outcome: Outcome) -> str:
    """Return the picture of a claim as base64 of a PNG; empty if there is nothing to draw."""
    claim = outcome.claim
    if not outcome.runs or not (claim.curves or claim.map):
        return ""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(LOOK):
        count = len(claim.curves) or 1
        figure, axes = plt.subplots(
            1, count, figsize=(4.6 * count, 2.9), layout="constrained", squeeze=False
        )
        if claim.map:
            draw_map(axes[0][0], outcome)
        for axis, metric in zip(axes[0], claim.curves, strict=False):
            draw_curves(axis, outcome, metric)
        file = io.BytesIO()
        figure.savefig(file, dpi=90, format="png")
        plt.close(figure)
    return base64.b64encode(file.getvalue()).decode("ascii")


def draw_curves(axis: Any, outcome: Outcome, metric: str) -> None:
    """Draw a metric over the steps: each run's smoothed mean in front of its seeds."""
    for number, (name, runs) in enumerate(outcome.runs.items()):
        color = COLOURS[number % len(COLOURS)]
        curves = [values_of(run, metric) for run in runs]
        shortest = min(map(len, curves))
        if not shortest:
            continue
        steps = steps_of(runs[0], metric)[:shortest]
        for curve in curves:
            axis.plot(steps, curve[:shortest], color=color, linewidth=0.7, alpha=0.3)
        mean = np.mean([curve[:shortest] for curve in curves], axis=0)
        axis.plot(steps, smooth(mean.tolist(), SMOOTHING), color=color, linewidth=1.7, label=name)
    axis.set_title(metric, family="serif")
    if len(outcome.runs) > 1:
        axis.legend()


def draw_map(axis: Any, outcome: Outcome) -> None:
    """Draw the end of a metric, as the mean over seeds, by two keys of the recipe."""
    keys = outcome.claim.map
    assert keys is not None
    cells, rows, columns = table_of_map(outcome)
    axis.imshow(cells, cmap="cividis", aspect="auto")
    middle = (np.nanmin(cells) + np.nanmax(cells)) / 2
    for (i, j), value in np.ndenumerate(cells):
        color = "black" if value > middle else "white"
        axis.text(j, i, f"{value:.2f}", ha="center", va="center", color=color, fontweight="bold")
    axis.grid(False)
    axis.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
    axis.set_yticks(range(len(rows)), [f"{row:g}" for row in rows])
    axis.set(xlabel=keys.columns, ylabel=keys.rows)
    axis.set_title(f"end of {keys.metric}", family="serif")


def table_of_map(outcome: Outcome) -> tuple[Array, list[float], list[float]]:
    """Return the cells (rows, columns) of a claim's map, NaN without a run, and its key values."""
    keys = outcome.claim.map
    assert keys is not None
    ends: dict[tuple[float, float], list[float]] = {}
    for run in (run for runs in outcome.runs.values() for run in runs):
        last = end_of(run, keys.metric)
        place = (float(run.recipe.get(keys.rows, 0)), float(run.recipe.get(keys.columns, 0)))
        if last is not None:
            ends.setdefault(place, []).append(last[0])
    rows = sorted({row for row, _ in ends})
    columns = sorted({column for _, column in ends})
    cells = np.full((len(rows), len(columns)), np.nan)
    for (row, column), values in ends.items():
        cells[rows.index(row), columns.index(column)] = np.mean(values)
    return cells, rows, columns
