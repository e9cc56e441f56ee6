"""`grpo-ext numerics`: measure how much the log-probs of the sampler and the trainer differ.

examples:
  grpo-ext numerics --config recipes/countdown/tiny.yaml
  grpo-ext numerics --config mine.yaml --completions 64 --json
  grpo-ext numerics --config mine.yaml --cast_lm_head_to_fp32 true

It loads the model in the recipe's dtypes and samples completions for the recipe's prompts with the
run's own sampler. Then it scores the same tokens with the run's training step, with and without
gradients and gradient checkpointing, in each layout of rows, and with a float32 copy of the
weights. With top_k, top_p or min_p, it also compares the tokens that sampler and trainer keep.
Nothing is trained, no reward is computed, and only one process is used. Each metric has a limit; if
one is exceeded, a line says which key to set.

exit codes: 0 all metrics are within their limits; 1 some are above; 2 the recipe cannot be used;
130 interrupted by Ctrl-C; 143 ended by SIGTERM
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpo_ext.cli.command import add_recipe_command, at_least
from grpo_ext.common.modules import without_collector

COMPLETIONS = 32  # sampled by default


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    parser.add_argument(
        "--completions",
        type=at_least(1),
        default=COMPLETIONS,
        metavar="N",
        help=f"completions to sample, rounded up to whole groups (default: {COMPLETIONS})",
    )
    parser.add_argument("--json", action="store_true", help="print the measurement as JSON")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides, 1)  # before slow imports
    with without_collector():
        from grpo_ext.bench.budget import Budget, interruptible
        from grpo_ext.numerics.advice import advice
        from grpo_ext.numerics.measure import STAGES, measure
        from grpo_ext.numerics.table import as_data, print_measurement

    with interruptible(Budget()), progress(STAGES) as begin:
        found = measure(recipe, args.completions, begin)
    lines = list(advice(found, recipe.flat))
    if args.json:
        print(json.dumps({"recipe": args.config, **as_data(found), "advice": lines}, indent=2))
    else:
        print_measurement(found)
        for line in lines:
            print(line)
        print("all within the limits" if found.within else "some metrics are above their limits")
    return 0 if found.within else 1


@contextmanager
def progress(stages: int) -> Iterator[Callable[[str], None]]:
    """Context manager that yields a function to call with the name of each stage that begins.

    In a terminal, the function updates a progress bar on stderr; otherwise, it prints a line there.

    Args:
        stages: the maximum number of stages, which is the length of the bar.
    """
    if not sys.stderr.isatty():
        yield lambda stage: print(f"numerics: {stage}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=stages)

        def begin(stage: str) -> None:
            bar.update(task, advance=1, description=stage)

        yield begin
