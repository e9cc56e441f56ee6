"""`grpo-ext eval`: evaluate and compare models on a recipe's held-out rows.

examples:
  grpo-ext eval --config recipes/countdown/tiny.yaml --model runs/countdown-tiny/grpo
  grpo-ext eval --config RECIPE --model BASE --model TRAINED --output compared.json --num_samples 16
  grpo-ext eval --config RECIPE --train_rows 256 --num_samples 8 --output rates.json

Held-out prompts are completed greedily and by sampling, and scored with the rewards. Several models
complete the same prompts and are compared with the first: paired differences with 95 % intervals,
and the problems that became right or wrong. --output FILE.json also writes every completion to
FILE_completions.jsonl.
--train_rows N uses N random training rows instead: mixed@K is then the share of groups that will
have signal in training with num_generations K, a line recommends a num_generations from 2 to K for
these rows, and the completions can serve as the recipe's pass_rates_file.
Any key of the recipe can be set as --key value, such as --max_eval_samples 64.
"""

import argparse
from pathlib import Path
from typing import Any

from grpo_ext.cli.command import add_recipe_command

PARTS = ("greedy", "sampled")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_recipe_command(subparsers, __doc__, run).add_argument
    add(
        "--model",
        action="append",
        metavar="MODEL",
        help="a model's folder or hub id; repeatable (default: the recipe's model)",
    )
    add(
        "--output",
        metavar="FILE",
        help="write the figures to this JSON file, and the completions next to it",
    )
    add(
        "--train_rows",
        type=int,
        default=0,
        metavar="N",
        help="evaluate on N random training rows (default: the held-out rows)",
    )
    add(
        "--num_samples",
        type=int,
        default=8,
        metavar="K",
        help="samples per row (default 8; 0: greedy only)",
    )
    add(
        "--sample_temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="temperature of the samples (default 1.0)",
    )
    add(
        "--batch_size",
        type=int,
        default=64,
        metavar="B",
        help="completions in a batch of transformers (default 64)",
    )
    add(
        "--engine",
        choices=("auto", "transformers", "vllm"),
        default="auto",
        help="engine that generates completions (default: vllm on a GPU, except for adapters; "
        "else transformers)",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.evaluation.evaluate_recipe import evaluate_models, save_evaluation
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides)
    models = args.model or [recipe.model.model_name_or_path]
    evaluation = evaluate_models(
        recipe,
        models,
        args.train_rows,
        num_samples=args.num_samples,
        temperature=args.sample_temperature,
        batch_size=args.batch_size,
        engine=args.engine,
    )
    print_evaluation(evaluation)
    if args.output:
        files = save_evaluation(Path(args.output), evaluation)
        print(f"Wrote {', '.join(map(str, files))}.")
    return 0


def print_evaluation(evaluation: dict[str, Any]) -> None:
    """Print the figures of all models side by side, and the comparison of each with the first."""
    from grpo_ext.evaluation.constant import constant_doubts
    from grpo_ext.evaluation.table import print_figures, print_grid

    print_figures(evaluation["summaries"], len(evaluation["rows"]))
    for model, summary in evaluation["summaries"].items():
        for part in PARTS:
            for sentence in constant_doubts(summary.get(part, {}), evaluation["outcomes"]):
                print(f"{model}, {part}: {sentence}")
    for model, sentence in evaluation["advice"].items():
        print(f"{model}: {sentence}")
    for comparison in evaluation["comparisons"]:
        rows = []
        for part in PARTS:
            for name, difference in comparison.get(part, {}).items():
                rows.append([part, name, as_text(difference), difference["verdict"] or ""])
        print_grid(
            f"{comparison['model']} against {comparison['against']}: "
            "paired difference, 95 % interval",
            ["", "", "difference", ""],
            rows,
            left=2,
            whole=2,
        )
        if "became_right" in comparison:
            right = len(comparison["became_right"])
            wrong = len(comparison["became_wrong"])
            print(f"{right} problems became right, {wrong} became wrong (greedy).")


def as_text(difference: dict[str, Any]) -> str:
    """Format a difference with its interval; a single problem has no interval."""
    if difference["low"] is None:
        return f"{difference['mean']:+.3f}"
    return f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
