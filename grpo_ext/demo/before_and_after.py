"""What a demo did: figures before and after, completions side by side, curves."""

import json
from pathlib import Path
from typing import Any

from rich import print
from rich.markup import escape
from rich.table import Table

from grpo_ext.evaluation.evaluate_recipe import outcome_of
from grpo_ext.evaluation.table import print_figures, question
from grpo_ext.observe.plots import plot_runs
from grpo_ext.observe.read_run import read_run
from grpo_ext.recipe.load import Recipe


def print_report(folder: Path, recipe: Recipe, seconds: dict[str, float]) -> None:
    """Print the table, three completions and the seconds of each stage; write `curves.png`."""
    summaries = {when: json.loads((folder / f"eval_{when}.json").read_text()) for when in ("before", "after")}
    print_figures(summaries, summaries["before"]["n"])
    print(completions_table(folder, outcome_of(recipe)))
    plot_runs([read_run(folder / "grpo", max_samples=0)], folder / "curves.png", most=6)
    spent = ", ".join(f"{name} {s:.0f} s" for name, s in seconds.items())
    print(f"time: {spent}; together {sum(seconds.values()):.0f} s")
    print(
        f"curves: {folder / 'curves.png'}; figures: {folder / 'eval_before.json'}, {folder / 'eval_after.json'}\n"
        f"every completion, in a browser: grpo-ext report {folder}"
    )


def completions_table(folder: Path, outcome_reward: str, count: int = 3) -> Table:
    """The same problems before and after: first those that GRPO taught, then any other."""
    texts = ((folder / f"eval_{when}_completions.jsonl").read_text(encoding="utf-8") for when in ("before", "after"))
    before, after = ([json.loads(line) for line in text.splitlines()] for text in texts)

    def learnt(row: int) -> float:
        return (after[row]["rewards"][outcome_reward] or 0) - (before[row]["rewards"][outcome_reward] or 0)

    chosen = sorted(range(len(before)), key=learnt, reverse=True)[:count]
    table = Table(title="greedy completions of the same problems", show_lines=True)
    for column in ("problem", "before", "after"):
        table.add_column(column, ratio=1, overflow="fold")
    for row in chosen:
        table.add_row(escape(question(before[row])), said(before[row]), said(after[row]))
    return table


def said(sample: dict[str, Any]) -> str:
    """A completion and, under it, what each reward gave it."""
    rewards = ", ".join(f"{name} {'-' if v is None else f'{v:g}'}" for name, v in sample["rewards"].items())
    return f"{escape(sample['text'])}\n[dim]{escape(rewards)}[/dim]"
