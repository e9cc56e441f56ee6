"""`grpo-ext eval`: how good a model is on a recipe's held-out rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  grpo-ext eval --config recipes/countdown/tiny.yaml --model runs/countdown-tiny/grpo
  grpo-ext eval --config recipes/countdown/tiny.yaml --output before.json --num_samples 16

Every key of a recipe can be set as --key value, such as --max_eval_samples 64 or --max_completion_length 512.
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a model on a recipe's held-out rows",
        description="Decode a recipe's held-out prompts greedily and by sampling, and score them with its rewards.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, metavar="RECIPE", help="a training recipe")
    parser.add_argument("--model", metavar="MODEL", help="folder or hub id (default: the recipe's model_name_or_path)")
    parser.add_argument(
        "--output", metavar="FILE", help="write the figures as JSON, and the greedy completions beside it"
    )
    parser.add_argument(
        "--num_samples", type=int, default=8, metavar="K", help="samples a row (default 8; 0: greedy only)"
    )
    parser.add_argument(
        "--sample_temperature", type=float, default=1.0, metavar="T", help="of the samples (default 1.0)"
    )
    parser.add_argument(
        "--batch_size", type=int, default=64, metavar="B", help="completions decoded at once (default 64)"
    )
    parser.set_defaults(run=run, takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    from grpo_ext.evaluation.load import evaluate_recipe
    from grpo_ext.evaluation.run import save_evaluation
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides)
    summary, samples, rows = evaluate_recipe(
        recipe,
        args.model or recipe.model.model_name_or_path,
        num_samples=args.num_samples,
        temperature=args.sample_temperature,
        batch_size=args.batch_size,
    )
    print_summary(summary)
    if args.output:
        save_evaluation(Path(args.output), summary, samples, rows)
        print(f"Written to {args.output}.")
    return 0


def print_summary(summary: dict[str, Any]) -> None:
    """The figures as a table: one line a metric, greedy and sampled side by side."""
    from rich.console import Console
    from rich.table import Table

    parts = [part for part in ("greedy", "sampled") if part in summary]
    table = Table(title=f"{summary['n']} held-out rows")
    table.add_column("")
    for part in parts:
        table.add_column(part, justify="right")
    keys = dict.fromkeys(key for part in parts for key in summary[part] if not key.endswith("_se"))
    for key in keys:
        table.add_row(key, *(figure(summary[part], key) for part in parts))
    Console().print(table)


def figure(part: dict[str, Any], key: str) -> str:
    """A mean with its standard error, as far as there are any."""
    value, error = part.get(key), part.get(f"{key}_se")
    if value is None:
        return ""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return f"{text} ± {error:.3f}" if error is not None else text
