"""What a run adds to the model's card: rewards, what was gained, curves, the recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from textwrap import indent
from typing import Any

from grpo_ext.common.files import write_atomically
from grpo_ext.evaluation.table import figure, table
from grpo_ext.observe.jsonl import read
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import RunData
from grpo_ext.observe.run_log import METRICS
from grpo_ext.recipe.difference import as_yaml

CARD, CURVES = "README.md", "curves.png"
FEWEST = 10  # logs of training that make a curve


def gained(history: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    """What a run began and ended with, by its log: name, first, last.

    Rewards in training, each of `names` where there are several, are means of the first and the last tenth of the logs.
    """
    rows = []
    for key in ("reward", *(f"rewards/{name}/mean" for name in names if len(names) > 1)):
        values = [row[key] for row in history if isinstance(row.get(key), float | int)]
        some = len(values) // 10 or 1
        if len(values) > 1:
            rows.append([key, f"{fmean(values[:some]):.3f}", f"{fmean(values[-some:]):.3f}"])
    for key in dict.fromkeys(key for row in history for key in row if key.startswith("eval_")):
        at = [row for row in history if key in row]
        if len(at) > 1 and (f"{key}_se" in at[0] or key in ("eval_reward", "eval_length")):
            rows.append([key, figure(at[0], key), figure(at[-1], key)])
    return rows


def draw_curves(folder: Path) -> None:
    """Draw the main curves of the run in `folder` beside its logs, if it logged enough."""
    metrics = list(read(folder / METRICS))
    if sum("reward" in row for row in metrics) >= FEWEST:
        plot_runs([RunData(folder.name, folder, metrics)], folder / CURVES, most=3)


def add_to_card(
    folder: Path, rewards: list[dict[str, Any]], gains: list[list[str]], recipe: Mapping[str, Any]
) -> None:
    """Put rewards, what `gained` says, curves and the values of `recipe.yaml` into the card that TRL has written."""
    options = [json.dumps(reward.get("options", {}), default=str).strip("{}") for reward in rewards]
    asked = [[r["name"], f"{r['weight']:g}", some] for r, some in zip(rewards, options, strict=True)]
    curves = f"![Curves of the run]({CURVES})" if (folder / CURVES).exists() else ""
    lines = [
        "### Rewards", "", *table(["reward", "weight", "options"], asked), "",
        "### Result", "", *table(["", "first", "last"], gains), "", curves, "",
        "### Recipe", "", "Trained with grpo_ext; every value that is not its default:", "", indent(as_yaml(recipe), "    "),
    ]  # fmt: skip
    before, mark, after = (folder / CARD).read_text(encoding="utf-8").partition("### Framework versions")
    write_atomically(folder / CARD, before + "\n".join(lines) + f"\n{mark}{after}")
