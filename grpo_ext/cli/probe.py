"""`grpo-ext probe`: estimate how many groups will have signal, before training.

examples:
  grpo-ext probe --config recipes/countdown/tiny.yaml
  grpo-ext probe --config RECIPE --num_prompts 512 --samples 32 --output rates.jsonl

It completes training prompts as training does, and prints the expected share of groups with signal for each num_generations.
The pass rates are written as one JSON object for each prompt. Every key of a recipe can be set as --key value.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_recipe_command, at_least

if TYPE_CHECKING:
    from grpo_ext.curriculum.group_sizes import Estimate, Expectation
    from grpo_ext.curriculum.pass_rates import PassCount


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add = add_recipe_command(subparsers, __doc__, run).add_argument
    add("--model", metavar="MODEL", help="folder or hub id (default: the recipe's model_name_or_path)")
    add("--num_prompts", type=at_least(1), default=256, metavar="N", help="prompts (default 256)")
    add("--samples", type=at_least(2), default=16, metavar="K", help="completions a prompt (default 16)")
    add("--batch_size", type=at_least(1), default=64, metavar="B", help="completions decoded at once (default 64)")
    add("--output", metavar="FILE", help="for the pass rates (default: pass_rates.jsonl in the recipe's output_dir)")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.curriculum.pass_rates import write_pass_rates
    from grpo_ext.evaluation.probe_recipe import probe_recipe
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides)
    model_name = args.model or recipe.get("model_name_or_path")
    name, counts, length = probe_recipe(recipe, model_name, args.num_prompts, args.samples, args.batch_size)
    print_probe(name, counts, length, recipe.get("num_generations"))
    output = Path(args.output or recipe.output_dir / "pass_rates.jsonl")
    write_pass_rates(output, counts)
    print(f"Pass rates written to {output}.")
    return 0


def print_probe(name: str, counts: list[PassCount], length: float, num_generations: int) -> None:
    """Print the estimates by the outcome reward `name`; `length` is the mean of completions in tokens."""
    from grpo_ext.curriculum.group_sizes import SIZES, expect, solved_shares, suggest
    from grpo_ext.evaluation.table import print_grid

    fewest = int(min(count.samples for count in counts))
    shares = [(kind, *in_percent(share)) for kind, share in solved_shares(counts).items()]
    title = f"{len(counts)} prompts, {fewest} samples each, by {name}"
    print_grid(title, ("solved", "share of prompts", "95 % interval"), shares)
    found = {size: expect(counts, size) for size in sorted({*SIZES, num_generations})}
    rows = []
    for size, expected in found.items():
        name = f"{size} (recipe)" if size == num_generations else str(size)
        rows.append((name, *in_percent(expected.with_signal, "*" * expected.extrapolated), *costs(expected, length)))
    head = ("num_generations", "with signal", "95 % interval", "completions a useful group", "tokens")
    print_grid("groups with signal, by group size", head, rows)
    if any(expected.extrapolated for expected in found.values()):
        print(f"* more than the {fewest} samples: extrapolated by a Beta distribution fitted to pass rates")

    size, reason = suggest([found[size] for size in SIZES])
    print(f"Suggested num_generations: {size} ({reason}).")
    waste = 1 - found[num_generations].with_signal.value
    instead = " group_filter: refill generates others in its place." if waste >= 0.3 else ""
    words = f"The recipe as it is, with num_generations {num_generations}"
    print(f"{words}: {waste:.0%} of what is generated teaches nothing.{instead}")


def in_percent(share: Estimate, mark: str = "") -> tuple[str, str]:
    """Return a share and its interval."""
    return f"{share.value:.1%}{mark}", f"{share.low:.1%} to {share.high:.1%}"


def costs(expected: Expectation, length: float) -> tuple[str, str]:
    """Return the completions and tokens for one group with signal."""
    completions = expected.completions_per_useful_group
    if completions == float("inf"):
        return "no limit", "no limit"
    return f"{completions:.1f}", f"{completions * length:,.0f}"
