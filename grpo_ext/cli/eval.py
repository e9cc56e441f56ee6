"""`grpo-ext eval`: evaluate and compare models on a recipe's held-out rows or public benchmarks.

examples:
  grpo-ext eval --config recipes/countdown/tiny.yaml --model runs/countdown-tiny/grpo
  grpo-ext eval --config RECIPE --model BASE --model TRAINED --output compared.json --num_samples 16
  grpo-ext eval --config RECIPE --train_rows 256 --num_samples 8 --output rates.json
  grpo-ext eval --suite gsm8k,ifeval --model BASE --model TRAINED

Each model completes the held-out prompts greedily and by sampling, and the rewards score the
completions. Each further model completes the same prompts and is compared with the first one: the
output has paired differences with 95% intervals, and the number of problems that became right or
wrong. --output FILE.json also writes every completion to FILE_completions.jsonl.
--train_rows N uses N random training rows instead. The metric mixed@K then estimates the share of
groups that have signal (different rewards) in training with num_generations K. Unless no group has
signal, the output recommends a num_generations from 2 to K. The file with the completions can be
used as the recipe's pass_rates_file.
--suite runs tasks of the lm-evaluation-harness instead (pip install 'grpo_ext[suite]').
Any key of the recipe can be set as --key value, such as --max_eval_samples 64.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_ext.cli.command import add_recipe_command, at_least
from grpo_ext.common.modules import without_collector
from grpo_ext.evaluation.output_files import check_output

PARTS = ("greedy", "sampled")
# options that only one of the two kinds of evaluation accepts, with their defaults
RECIPE_OPTIONS = {
    "train_rows": 0,
    "num_samples": 8,
    "sample_temperature": 1.0,
}
SUITE_OPTIONS = {"suite_limit": None, "suite_tasks": None}
ROWS_AT_ONCE = 64
SUITE_ROWS_AT_ONCE = 8  # the harness keeps the logits of a whole batch in memory


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_recipe_command(subparsers, __doc__, run, required=False).add_argument
    add(
        "--model",
        action="append",
        type=os.path.expanduser,
        metavar="MODEL",
        help="a model's folder or hub id; repeatable (default: the recipe's model)",
    )
    add(
        "--output",
        metavar="FILE",
        help="write the metrics to this JSON file, and the completions to a file next to it",
    )
    add(
        "--train_rows",
        type=at_least(0),
        default=RECIPE_OPTIONS["train_rows"],
        metavar="N",
        help="evaluate on N random training rows (default: the held-out rows)",
    )
    add(
        "--num_samples",
        type=at_least(0),
        default=RECIPE_OPTIONS["num_samples"],
        metavar="K",
        help="number of sampled completions per row (default: 8; 0 decodes greedily only)",
    )
    add(
        "--sample_temperature",
        type=float,
        default=RECIPE_OPTIONS["sample_temperature"],
        metavar="T",
        help="sampling temperature (default: 1.0)",
    )
    add(
        "--batch_size",
        type=at_least(1),
        metavar="B",
        help="number of completions that transformers decodes at once (default: 64, or 8 with "
        "--suite)",
    )
    add(
        "--engine",
        choices=("auto", "transformers", "vllm"),
        default="auto",
        help="engine that generates completions (default: vllm if it is installed and there is a "
        "GPU, except with use_cpu, adapters or environments; else transformers)",
    )
    add("--suite", metavar="NAMES", help="comma-separated tasks, such as gsm8k,mmlu")
    add(
        "--suite_limit",
        type=at_least(1),
        metavar="N",
        help="evaluate only the first N documents of each task",
    )
    add(
        "--suite_tasks",
        type=Path,
        metavar="FOLDER",
        help="folder with additional tasks as YAML files; such files can run code",
    )


def run(args: argparse.Namespace) -> int:
    check_options(args)
    if args.suite is not None:
        return run_suite(args)
    return run_recipe(args)


def check_options(args: argparse.Namespace) -> None:
    """Check the options before anything slow is done.

    Raises:
        ValueError: if there is neither a recipe nor a suite, if there is a suite but neither a
            model nor a recipe, if `--suite` names no task, if an option has no effect in this kind
            of evaluation, or if the `--output` file cannot be written.
    """
    if args.suite is None and args.config is None:
        raise ValueError(
            "eval needs something to evaluate on: pass --config RECIPE for the rows of a recipe, "
            "or --suite NAMES for tasks of the lm-evaluation-harness."
        )
    if args.suite is not None and args.config is None and not args.model:
        raise ValueError("--suite needs a model: pass --model MODEL or --config RECIPE.")
    if args.suite is not None and not task_names(args.suite):
        raise ValueError("--suite names no task: pass task names, separated by commas.")
    if args.output:
        check_output(Path(args.output))
    idle = SUITE_OPTIONS if args.suite is None else RECIPE_OPTIONS
    for name, default in idle.items():
        if getattr(args, name) != default:
            place = "without --suite" if args.suite is None else "with --suite"
            raise ValueError(f"--{name} has no effect {place}. Remove --{name}.")


def task_names(text: str) -> list[str]:
    """Return the comma-separated names in the value of `--suite`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def run_recipe(args: argparse.Namespace) -> int:
    """Evaluate models on the rows of a recipe, print the figures, and return 0.

    With `--output`, the figures and the completions are also written to files.
    """
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides)
    with without_collector():
        from grpo_ext.evaluation.evaluate_recipe import evaluate_models, save_evaluation

    models = args.model or [recipe.model.model_name_or_path]
    evaluation = evaluate_models(
        recipe,
        models,
        args.train_rows,
        num_samples=args.num_samples,
        temperature=args.sample_temperature,
        batch_size=args.batch_size or ROWS_AT_ONCE,
        engine=args.engine,
    )
    print_evaluation(evaluation)
    if args.output:
        files = save_evaluation(Path(args.output), evaluation)
        print(f"Wrote {', '.join(map(str, files))}.")
    return 0


def run_suite(args: argparse.Namespace) -> int:
    """Evaluate models on tasks of the lm-evaluation-harness, print the figures, and return 0.

    With `--output`, the figures are also written after each model. If a recipe is given, its keys
    determine how the models are loaded. Otherwise, each model is loaded in its saved dtype.
    """
    from grpo_ext.recipe.load import load_recipe

    overrides = args.overrides
    if args.config is None:
        overrides = ["--model_name_or_path", args.model[0], "--dtype", "auto", *overrides]
    recipe = load_recipe(args.config, overrides)
    with without_collector():
        from grpo_ext.evaluation.suite import Suite, evaluate_suite
        from grpo_ext.evaluation.suite_figures import save_suite

    suite = Suite(
        names=task_names(args.suite),
        folder=args.suite_tasks,
        limit=args.suite_limit,
        batch_size=args.batch_size or SUITE_ROWS_AT_ONCE,
        engine=args.engine,
    )
    files: list[Path] = []
    models = args.model or [recipe.model.model_name_or_path]
    for evaluation in evaluate_suite(recipe, models, suite):
        if args.output:  # after each model, since a later one may fail hours later
            files = save_suite(Path(args.output), evaluation)
    print_suite(evaluation)
    if files:
        print(f"Wrote {', '.join(map(str, files))}.")
    return 0


def print_evaluation(evaluation: dict[str, Any]) -> None:
    """Print a table with the figures of all models, advice, and comparisons with the first model.

    `evaluation` is the result of `evaluate_models`.
    """
    from grpo_ext.evaluation.constant import constant_doubts
    from grpo_ext.evaluation.table import print_figures

    print_figures(evaluation["summaries"], len(evaluation["rows"]))
    for model, summary in evaluation["summaries"].items():
        for part in PARTS:
            for sentence in constant_doubts(summary.get(part, {}), evaluation["outcomes"]):
                print(f"{model}, {part}: {sentence}")
    for model, sentence in evaluation["advice"].items():
        print(f"{model}: {sentence}")
    for comparison in evaluation["comparisons"]:
        print_comparison(comparison, PARTS)
        if "became_right" in comparison:
            right = len(comparison["became_right"])
            wrong = len(comparison["became_wrong"])
            print(f"Greedy completions: {right} problems became right, {wrong} became wrong.")


def print_comparison(comparison: dict[str, Any], parts: Sequence[str]) -> None:
    """Print the paired differences between two models in the named parts of an evaluation.

    The parts are "greedy" and "sampled" for a recipe, and task names for a suite.
    """
    from grpo_ext.evaluation.table import print_grid

    rows = []
    for part in parts:
        for name, difference in comparison.get(part, {}).items():
            rows.append([part, name, as_text(difference), difference["verdict"] or ""])
    print_grid(
        f"{comparison['model']} against {comparison['against']}: paired difference, 95 % interval",
        ["", "", "difference", ""],
        rows,
        left=2,
        whole=2,
    )


def print_suite(evaluation: dict[str, Any]) -> None:
    """Print the figures of all models on a suite's tasks, and compare each model with the first.

    If a group of tasks has figures of its own, only these are printed; the figures of the group's
    individual tasks are in the `--output` file, if there is one. Models without a chat template are
    named at the end.
    """
    from grpo_ext.evaluation.table import print_parts

    names = evaluation["settings"]["shown"]
    print_parts(evaluation["figures"], names, "mean ± standard error")
    for comparison in evaluation["comparisons"]:
        print_comparison(comparison, names)
    for model, has_template in evaluation["settings"]["chat_template"].items():
        if not has_template:
            print(f"{model} has no chat template: its prompts were plain text.")


def as_text(difference: dict[str, Any]) -> str:
    """Format the mean of a paired difference, followed by its interval if it has one.

    `difference` has the keys `mean`, `low` and `high`; the last two are `None` if the evaluation
    has only one problem.
    """
    if difference["low"] is None:
        return f"{difference['mean']:+.3f}"
    return f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
