"""Tables of figures on the terminal and in Markdown, for evaluations and model cards."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent, wrap
from typing import Any, Literal

from grpo_ext.common.estimates import with_error
from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text
from grpo_ext.common.untrusted import one_line
from grpo_ext.evaluation.completions import Row
from grpo_ext.observe.changes import change_of_metric
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.panels import NOT_DRAWN_ENDINGS, problems_key
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData
from grpo_ext.observe.run_log import METRICS
from grpo_ext.recipe.difference import as_yaml

CUT = 400  # most characters of a cell
FOLDED = 12  # least width of a column whose cells or name are broken into lines
CARD = "README.md"
CURVES = "curves.png"
FEWEST = 10  # least logs of training for a curve


def figure(part: Row, key: str) -> str:
    """Return a mean with its standard error, if there are any, as text."""
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
    """Print a table as wide as the terminal, or wider if it does not fit.

    Args:
        title: printed above the table.
        head: the names of the columns.
        body: the rows.
        left: number of first columns that are aligned on the left; the others are on the right.
        whole: number of first columns whose cells are never broken into lines.
        lines: whether there are lines between rows.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    widths = [cell_width(body, column) for column in range(whole)]
    folded_widths = [FOLDED] * (len(head) - whole)
    needed = grid_width(widths + folded_widths)
    width = max(Console().width, needed)
    num_names = sum(map(bool, head[:whole]))
    room = (width - needed) // max(1, num_names)  # more for each broken name
    grid = Table(title=escape(title), show_lines=lines)
    for column, name in enumerate(head):
        justify: Literal["left", "right"] = "left" if column < left else "right"
        if column < whole:
            name = "\n".join(wrap(name, widths[column] + room))
        grid.add_column(escape(name), justify=justify, overflow="fold", no_wrap=column < whole)
    for row in body:
        grid.add_row(*map(escape, row))
    Console(width=width).print(grid)


def cell_width(body: Sequence[Sequence[str]], column: int) -> int:
    """Return the width of the widest cell of a column in characters of a terminal, at least 1."""
    from rich.cells import cell_len

    return max([1, *(cell_len(row[column]) for row in body)])


def grid_width(widths: Sequence[int]) -> int:
    """Return the width of a table by those of its columns, each with a border and two blanks."""
    return sum(widths) + 3 * len(widths) + 1


def print_figures(summaries: dict[str, Row], count: int) -> None:
    """Print the figures of models side by side, greedy ones before sampled ones.

    Where not all models fit beside each other, the others follow in further tables.
    """
    from rich.console import Console

    rows = figure_rows(summaries)
    names = ["", "", *summaries]
    key_widths = [cell_width(rows, 0), cell_width(rows, 1)]
    first = 2  # column of the first model in this table
    while first < len(names):
        last = len(names)
        while last > first + 1:
            widths = key_widths + figure_widths(rows, range(first, last))
            if grid_width(widths) <= Console().width:
                break
            last -= 1
        head = names[:2] + names[first:last]
        body = [row[:2] + row[first:last] for row in rows]
        print_grid(f"{count} rows, mean ± standard error", head, body, left=2, whole=len(head))
        first = last


def figure_rows(summaries: dict[str, Row]) -> list[list[str]]:
    """Return a row for each figure: part of the evaluation, name, and its text for each model."""
    rows = []
    for part in ("greedy", "sampled"):
        figures_of_models = [summary.get(part, {}) for summary in summaries.values()]
        keys: dict[str, None] = {}
        for figures in figures_of_models:
            keys.update(dict.fromkeys(figures))
        for key in keys:
            if not key.endswith("_se"):
                texts = [figure(figures, key) for figures in figures_of_models]
                rows.append([part, key, *texts])
    return rows


def figure_widths(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[int]:
    """Return the widths of columns of figures, above which the name of a model has to fit."""
    return [max(FOLDED, cell_width(rows, column)) for column in columns]


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = []
    for row in (head, ["---"] * len(head), *body):
        cells = " | ".join(map(cell, row))
        lines.append(f"| {cells} |")
    return lines


def cell(text: str) -> str:
    """Return text as the content of a Markdown cell, with Markdown and HTML escaped."""
    if len(text) > CUT:
        text = f"{text[:CUT]} ..."
    text = html.escape(text, quote=False)
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    return "<br>".join(map(one_line, text.splitlines()))


def question(row: Row) -> str:
    """Return the text of the prompt's last message."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return prompt
    return prompt[-1]["content"]


@dataclass(frozen=True)
class Gain:
    """First and last value of a figure with standard errors, and the verdict (may be empty)."""

    name: str
    first: str
    last: str
    verdict: str


def gained(history: list[Row], names: list[str]) -> list[Gain]:
    """Return how the figures of a run changed, by its log.

    They are the rewards in training, with each of several `names`, and the figures of evaluations;
    see `grpo_ext.common.curves.curve_change`.
    """
    keys = ["reward"]
    if len(names) > 1:
        keys += [f"rewards/{name}/mean" for name in names]
    evaluated: dict[str, None] = {}
    for row in history:
        for key in row:
            if key.startswith("eval_"):
                evaluated[key] = None
    for key in evaluated:
        of_set = key.endswith("_reward") and f"{key}_std" in evaluated
        by_trl = key in ("eval_reward", "eval_length") or of_set
        measured = by_trl or problems_key(evaluated, key) or f"{key}_se" in evaluated
        if measured and not key.endswith(NOT_DRAWN_ENDINGS):
            keys.append(key)
    gains = []
    for key in keys:
        change = change_of_metric(history, key)
        if change is not None:
            first = with_error(change.first, change.first_error)
            last = with_error(change.last, change.last_error)
            gains.append(Gain(key, first, last, change.verdict or ""))
    return gains


def draw_curves(folder: Path) -> None:
    """Draw the main curves of the run in `folder` beside its logs, if there are enough logs."""
    metrics = list(read(folder / METRICS))
    num_values = sum("reward" in row for row in metrics)
    if num_values >= FEWEST:
        run = RunData(folder.name, folder, metrics)
        plot_runs([run], folder / CURVES, most=3)


def add_to_card(
    folder: Path,
    rewards: list[Row],
    gains: list[Gain],
    recipe: Mapping[str, Any],
    sentences: Sequence[str] = (),
) -> None:
    """Add rewards, the rows of `gained`, curves and the recipe to the model card from TRL.

    Args:
        folder: of the run, with the card and the curves.
        rewards: name, weight and options of each.
        gains: the rows of the table of results.
        recipe: the values that are not their defaults.
        sentences: about the run, above the table of gains, each in its own paragraph.
    """
    reward_rows = []
    for reward in rewards:
        weight = f"{reward['weight']:g}"
        options = json.dumps(reward.get("options", {}), default=str)
        reward_rows.append([reward["name"], weight, options.strip("{}")])
    gain_rows = [[gain.name, gain.first, gain.last, gain.verdict] for gain in gains]
    paragraphs = []
    for sentence in sentences:
        paragraphs += [cell(sentence), ""]
    curves = f"![Curves of the run]({CURVES})" if (folder / CURVES).exists() else ""
    lines = [
        "### Rewards",
        "",
        *table(["reward", "weight", "options"], reward_rows),
        "",
        "### Result",
        "",
        *paragraphs,
        *table(["", "first", "last", ""], gain_rows),
        "",
        curves,
        "",
        "### Recipe",
        "",
        "Trained with grpo_ext; every value that is not its default:",
        "",
        indent(as_yaml(recipe), "    "),
    ]
    section = "\n".join(lines)
    card = read_text(folder / CARD, within=folder)
    before, heading, after = card.partition("### Framework versions")
    write_atomically(folder / CARD, f"{before}{section}\n{heading}{after}")
