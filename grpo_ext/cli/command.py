"""Add the parsers of subcommands. The docstring of a subcommand's module is its `--help`."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Run = Callable[[argparse.Namespace], int]


def add_command(
    subparsers: argparse._SubParsersAction, doc: str | None, run: Run, **settings: Any
) -> argparse.ArgumentParser:
    """Add the parser of one subcommand.

    Args:
        subparsers: the subparsers of `grpo-ext`.
        doc: the help text, which begins with "`grpo-ext NAME`: what it does.".
        run: the function that is called with the parsed arguments and returns the exit code.
        settings: further arguments of `argparse.ArgumentParser`.
    """
    names, _, summary = (doc or "").partition("\n")[0].partition("`: ")
    parser = subparsers.add_parser(
        names.split()[-1],
        help=summary.rstrip(".").replace("%", "%%"),
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **settings,
    )
    parser.set_defaults(run=run, takes_overrides=False)
    return parser


def add_recipe_command(
    subparsers: argparse._SubParsersAction, doc: str | None, run: Run, required: bool = True
) -> argparse.ArgumentParser:
    """Add the parser of a subcommand that reads a recipe and takes its keys as `--key value`.

    Args:
        subparsers: the subparsers of `grpo-ext`.
        doc: the help text, as for `add_command`.
        run: the function of the command, as for `add_command`.
        required: whether the command always needs a recipe.
    """
    parser = add_command(subparsers, doc, run, allow_abbrev=False)
    parser.add_argument(
        "--config",
        required=required,
        metavar="RECIPE",
        help="a YAML file, or a name that `grpo-ext recipes` lists",
    )
    parser.set_defaults(takes_overrides=True)
    return parser


def add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num_processes",
        type=at_least(1),
        metavar="N",
        help="number of processes (default: that of the accelerate config, else 1)",
    )


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse `type` that accepts integers of at least `minimum`."""

    def parse(text: str) -> int:
        with suppress(ValueError):
            number = int(text)
            if number >= minimum:
                return number
        raise argparse.ArgumentTypeError(
            f"it must be a whole number of at least {minimum}; got {text!r}"
        )

    return parse
