"""Evaluations as Markdown: figures of each model, differences with their intervals, problems that changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

SHOWN = 5  # problems of each kind that are shown
CUT = 400  # characters of a completion that are shown


def figure(part: dict[str, Any], key: str) -> str:
    """A mean with its standard error, as far as there are any."""
    value, error = part.get(key), part.get(f"{key}_se")
    if value is None:
        return ""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f"{text} ± {error:.3f}" if error is not None else text


def figure_rows(summaries: list[dict[str, Any]]) -> list[list[str]]:
    """A row a figure: its part ("greedy", "sampled"), its name, and what each model has."""
    rows = []
    for part in ("greedy", "sampled"):
        keys = dict.fromkeys(key for summary in summaries for key in summary.get(part, {}) if not key.endswith("_se"))
        rows += [[part, key, *(figure(summary.get(part, {}), key) for summary in summaries)] for key in keys]
    return rows


def print_grid(title: str, head: Iterable[str], body: Iterable[Sequence[str]], left: int = 0) -> None:
    """Print a table whose columns, but for the first `left`, are aligned on the right."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    grid = Table(title=escape(title))
    for i, name in enumerate(head):
        grid.add_column(escape(name), justify="right" if i >= left else "left", overflow="fold")
    for row in body:
        grid.add_row(*map(escape, row))
    Console().print(grid)


def print_figures(summaries: dict[str, dict[str, Any]], count: int) -> None:
    """Print the figures of models side by side."""
    title = f"{count} held-out rows, mean ± standard error"
    print_grid(title, ["", "", *summaries], figure_rows(list(summaries.values())), left=2)


def difference_rows(comparison: dict[str, Any]) -> list[list[str]]:
    """A row a difference: its part, its name, and its mean with the interval."""
    return [
        [part, name, f"{d['mean']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"]
        for part in ("greedy", "sampled")
        for name, d in comparison.get(part, {}).items()
    ]


def markdown(
    summaries: dict[str, dict[str, Any]], comparisons: list[dict[str, Any]], rows: list[dict[str, Any]], texts: Any
) -> str:
    """The page of an evaluation: of what `evaluate_models` found, `texts` by model its greedy completion of each row."""
    lines = [f"# {len(rows)} held-out rows", "", "Mean ± standard error over rows.", ""]
    lines += table(["", "", *summaries], figure_rows(list(summaries.values())))
    for comparison in comparisons:
        model, against = comparison["model"], comparison["against"]
        lines += ["", f"## {cell(model)} against {cell(against)}", ""]
        lines += ["Paired difference, with its 95 % bootstrap interval over rows.", ""]
        lines += table(["", "", "difference"], difference_rows(comparison))
        for key in ("became_right", "became_wrong"):
            if (changed := comparison.get(key)) is None:
                continue
            first = f", the first {SHOWN}" if len(changed) > SHOWN else ""
            lines += ["", f"### {len(changed)} problems {key.replace('_', ' ')}{first}", ""]
            lines += table(
                ["row", "problem", cell(against), cell(model)],
                [[str(i), question(rows[i]), texts[against][i], texts[model][i]] for i in changed[:SHOWN]],
            )
    return "\n".join(lines) + "\n"


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(map(cell, line)) + " |" for line in lines]


def cell(text: str) -> str:
    """Text that cannot leave its cell: what a model wrote is shown as it is, and no part of it is Markdown or HTML."""
    text = text if len(text) <= CUT else f"{text[:CUT]} ..."
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    return "<br>".join("".join(ch for ch in line if ch.isprintable()) for line in text.splitlines())


def question(row: dict[str, Any]) -> str:
    """What the user asked."""
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]
