"""`grpo-ext reproduce`: test whether published observations hold in new runs of three experiments.

examples:
  grpo-ext reproduce countdown                   test all claims of Countdown on a CPU
  grpo-ext reproduce countdown gsm8k verse       test all three experiments
  grpo-ext reproduce countdown --claim format-sooner --claim length-dips
  grpo-ext reproduce verse --list                list the names of the claims
  grpo-ext reproduce verse --plan                show how many runs it needs, and how long they take
  grpo-ext reproduce countdown --config countdown/qwen2.5-3b --seeds 1      with another model

It creates tiny models, trains them once per seed, and measures them. For each claim, it prints what
was published, what was measured here with its standard error over seeds, and a verdict based on the
95% interval: "agrees", "does not", or "cannot be seen" at this size, with the reason. The page
claims.html in the working folder has plots. Finished runs are not repeated, and a run that was
killed is continued. With --config, the same claims are measured with the model of that recipe, and
any of its keys can be set as --key value.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_command, at_least

if TYPE_CHECKING:
    from grpo_ext.reproduce.claims import Scale

NAMES = ("countdown", "gsm8k", "verse")


class RecipeOfModel(argparse.Action):
    """Argparse action that stores `--config`, and then allows recipe keys on the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        namespace.config = values
        namespace.takes_overrides = True


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run, allow_abbrev=False)
    add = parser.add_argument
    add(
        "experiments",
        nargs="+",
        choices=NAMES,
        metavar="EXPERIMENT",
        help="one or more of: " + ", ".join(NAMES),
    )
    add(
        "--claim",
        action="append",
        metavar="NAME",
        help="test only this claim; repeatable (default: all claims)",
    )
    add(
        "--seeds",
        type=at_least(1),
        default=3,
        metavar="N",
        help="number of seeds with which each run is repeated (default: 3)",
    )
    add(
        "--folder",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="working folder (default: runs/reproduce)",
    )
    add(
        "--scale",
        choices=("tiny", "pretrained", "full"),
        help="size of the models, which decides which claims can be tested (default: tiny, or "
        "pretrained with --config)",
    )
    add(
        "--config",
        action=RecipeOfModel,
        metavar="RECIPE",
        help="recipe with the model to use instead of tiny models",
    )
    add(
        "--max_steps",
        type=at_least(1),
        metavar="N",
        help="end every run after N steps, for a quick try (default: each run's own number)",
    )
    add(
        "--processes",
        type=at_least(1),
        default=num_cores(),
        metavar="N",
        help="number of tiny runs at a time (default: the number of cores)",
    )
    add("--list", action="store_true", help="only list the claims")
    add("--plan", action="store_true", help="only show what would run, and for how long")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(args.experiments))
    if args.config and len(names) > 1:
        raise ValueError("--config: a recipe belongs to one experiment. Name only that experiment.")
    if args.config and args.scale == "tiny":
        raise ValueError(
            "--scale tiny trains the tiny models of this command, but --config selects the model "
            "of a recipe. Remove one of the two options."
        )
    if args.scale not in (None, "tiny") and not args.config:
        raise ValueError(f"--scale {args.scale} needs the recipe of a model. Add --config RECIPE.")
    if args.config:
        from grpo_ext.recipe.load import load_recipe

        load_recipe(args.config, args.overrides)  # reports a faulty recipe before slow imports
    from grpo_ext.reproduce.command import print_claims, reproduce, selected

    scale: Scale = args.scale or ("pretrained" if args.config else "tiny")
    experiments = selected(names, args.claim or [])
    if args.list:
        print_claims(experiments)
        return 0
    outcomes = reproduce(
        experiments,
        args.folder,
        args.seeds,
        scale,
        args.processes,
        args.config,
        args.overrides,
        args.max_steps,
        args.plan,
    )
    return int(any(outcome.failed for outcome in outcomes))
