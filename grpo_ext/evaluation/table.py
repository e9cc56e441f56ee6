"""Tables of metrics for the terminal and in Markdown, for evaluations and model cards."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Literal

from grpo_ext.common.estimates import with_error
from grpo_ext.common.untrusted import one_line
from grpo_ext.evaluation.completions import Row
from grpo_ext.observe.changes import change_of_metric
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.log_files import METRICS
from grpo_ext.observe.panels import (
    NOT_DRAWN_ENDINGS,
    is_number,
    is_of_episodes,
    pass_rates_of_graded,
    problems_key,
)
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData, Values

CUT = 400  # maximum number of characters in a cell
FOLDED = 12  # minimum width of a column whose cells or name are wrapped
CURVES = "curves.png"
FEWEST = 10  # minimum number of training logs for a curve
BY_CURVE = ", by the whole curve"


def figure(part: Row, key: str) -> str:
    """Format a metric with its standard error, if known; return `""` if the metric is missing."""
    mean = part.get(key)
    if mean is None:
        return ""
    if not isinstance(mean, float):
        return str(mean)
    return with_error(mean, part.get(f"{key}_se"))


def print_grid(
    title: str,
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    left: int = 0,
    whole: int = 0,
    lines: bool = False,
) -> None:
    """Print a table, which is wider than the terminal only if its columns need the space.

    Args:
        title: the title, printed above the table.
        head: the names of the columns.
        body: the rows.
        left: the number of leading columns to align left; the others are aligned right.
        whole: the number of leading columns whose cells are never wrapped, although their names
            may be.
        lines: whether to draw lines between rows.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    widths = [cell_width(body, column) for column in range(whole)]
    folded_widths = [FOLDED] * (len(head) - whole)
    needed = grid_width(widths + folded_widths)
    width = max(Console().width, needed)
    num_names = sum(map(bool, head[:whole]))
    room = (width - needed) // max(1, num_names)  # additional width for each wrapped name
    grid = Table(title=escape(title), show_lines=lines)
    for column, name in enumerate(head):
        justify: Literal["left", "right"] = "left" if column < left else "right"
        if column < whole:
            name = "\n".join(wrap(name, widths[column] + room))
        grid.add_column(
            escape(name),
            justify=justify,
            overflow="fold",
            no_wrap=column < whole,
        )
    for row in body:
        grid.add_row(*map(escape, row))
    Console(width=width).print(grid)


def cell_width(body: Sequence[Sequence[str]], column: int) -> int:
    """Return the width of the widest cell of a column, in terminal columns; at least 1."""
    from rich.cells import cell_len

    widths = [cell_len(row[column]) for row in body]
    return max([1, *widths])


def grid_width(widths: Sequence[int]) -> int:
    """Return the width of a table with these column widths, including borders and padding."""
    return sum(widths) + 3 * len(widths) + 1


def print_figures(summaries: dict[str, Row], count: int) -> None:
    """Print the metrics of models side by side, first for greedy decoding, then for sampling.

    Args:
        summaries: the summary of each model, from `evaluate`.
        count: the number of evaluated rows, for the title.
    """
    print_parts(summaries, ("greedy", "sampled"), f"{count} rows, mean ± standard error")


def print_parts(summaries: dict[str, Row], parts: Sequence[str], title: str) -> None:
    """Print the metrics of models side by side, part by part.

    If the models do not all fit in the width of the terminal, they are split across several tables.

    Args:
        summaries: for each model, the metrics of each part.
        parts: the keys of the parts to print, such as `greedy` or the name of a task.
        title: the title of each table.
    """
    from rich.console import Console

    rows = figure_rows(summaries, parts)
    names = ["", "", *summaries]
    key_widths = [cell_width(rows, 0), cell_width(rows, 1)]
    first = 2  # column of the first model in this table
    while first < len(names):
        last = len(names)
        while last > first + 1:
            widths = list(key_widths)
            for column in range(first, last):
                # wide enough for the wrapped name of a model
                widths.append(max(FOLDED, cell_width(rows, column)))
            if grid_width(widths) <= Console().width:
                break
            last -= 1
        head = names[:2] + names[first:last]
        body = [row[:2] + row[first:last] for row in rows]
        print_grid(title, head, body, left=2, whole=len(head))
        first = last


def figure_rows(summaries: dict[str, Row], parts: Sequence[str]) -> list[list[str]]:
    """Return a table row for each metric: its part, its name, and its value for each model.

    The values are formatted with their standard errors.
    """
    rows = []
    for part in parts:
        figures_of_models = [summary.get(part, {}) for summary in summaries.values()]
        keys: dict[str, None] = {}
        for figures in figures_of_models:
            keys.update(dict.fromkeys(figures))
        for key in keys:
            if not key.endswith("_se"):
                texts = [figure(figures, key) for figures in figures_of_models]
                rows.append([part, key, *texts])
    return rows


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table; `cell` escapes and truncates each cell."""
    lines = []
    for row in (head, ["---"] * len(head), *body):
        cells = " | ".join(map(cell, row))
        lines.append(f"| {cells} |")
    return lines


def cell(text: str) -> str:
    """Truncate `text` to `CUT` characters, and escape Markdown and HTML for a table cell.

    Line breaks become `<br>`.
    """
    if len(text) > CUT:
        text = f"{text[:CUT]} ..."
    text = html.escape(text, quote=False)
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    return "<br>".join(map(one_line, text.splitlines()))


def question(row: Row) -> str:
    """Return a row's prompt if it is a string, else the content of the prompt's last message."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    return prompt[-1]["content"]


@dataclass(frozen=True)
class Gain:
    """The first and last values of a metric, formatted with standard errors, and a verdict.

    The verdict is "rose", "fell" or "did not clearly change", or `""` if there are too few values
    to judge the change. It ends with `BY_CURVE` if the curve as a whole shows a change, although
    the first and last values differ by less than the sum of their errors.
    """

    name: str
    first: str
    last: str
    verdict: str


def gained(
    history: list[Row], names: list[str], outcomes: Sequence[str] | None = None
) -> list[Gain]:
    """Return the change in each reported metric from the start to the end of a run.

    The reported metrics are the training reward, each individual reward if there are several, and
    the metrics that evaluations average over rows. Metrics of episodes and tools, scores of
    constant answers, pass@k that stayed 0 because a reward gives graded scores, and metrics with
    fewer than two values are left out. `grpo_ext.common.curves.curve_change` describes how changes
    are judged.

    Args:
        history: the logs of the run, oldest first.
        names: the names of the rewards.
        outcomes: the outcome rewards, in the order of `outcome_order`; `None` means the first
            reward.
    """
    keys = ["reward"]
    if len(names) > 1:
        keys += [f"rewards/{name}/mean" for name in names]
    evaluated: dict[str, Values] = {}
    for row in history:
        for key, value in row.items():
            if key.startswith("eval_"):
                evaluated.setdefault(key, []).append(value if is_number(value) else None)
    left_out = pass_rates_of_graded(evaluated, names[:1] if outcomes is None else outcomes)
    for key in evaluated:
        if key in left_out:
            continue
        of_set = key.endswith("_reward") and f"{key}_std" in evaluated
        by_trl = key in ("eval_reward", "eval_length") or of_set
        measured = by_trl or problems_key(evaluated, key) or f"{key}_se" in evaluated
        if measured and not key.endswith(NOT_DRAWN_ENDINGS) and not is_of_episodes(key):
            keys.append(key)
    gains = []
    for key in keys:
        change = change_of_metric(history, key)
        if change is not None:
            first = with_error(change.first, change.first_error)
            last = with_error(change.last, change.last_error)
            verdict: str = change.verdict or ""
            if verdict in ("rose", "fell") and change.ends_overlap:
                verdict += BY_CURVE
            gains.append(Gain(key, first, last, verdict))
    return gains


def draw_curves(folder: Path) -> None:
    """Draw the main curves of the run in `folder`, and save them there as `CURVES`.

    If the run has fewer than `FEWEST` logs with a reward, draw nothing.
    """
    metrics = list(read(folder / METRICS))
    num_values = sum("reward" in row for row in metrics)
    if num_values >= FEWEST:
        run = RunData(folder.name, folder, metrics)
        plot_runs([run], folder / CURVES, most=3)
