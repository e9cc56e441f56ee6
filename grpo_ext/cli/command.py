"""Add parsers for subcommands. The docstring of a subcommand's module is its `--help` text."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Run = Callable[[argparse.Namespace], int]


def add_command(
    subparsers: argparse._SubParsersAction, doc: str | None, run: Run, **settings: Any
) -> argparse.ArgumentParser:
    """Add the parser for one subcommand, and return it.

    Args:
        subparsers: the subparsers of `grpo-ext`.
        doc: the help text, which begins with "`grpo-ext NAME`: what it does.".
        run: the function that is called with the parsed arguments and returns the exit code.
        settings: additional arguments for `argparse.ArgumentParser`.
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
    """Add the parser for a subcommand with a recipe, whose keys can be set as `--key value`.

    Args:
        subparsers: the subparsers of `grpo-ext`.
        doc: the help text, which begins with "`grpo-ext NAME`: what it does.".
        run: the function that is called with the parsed arguments and returns the exit code. Keys
            set on the command line are in the argument `overrides`.
        required: whether `--config` is required.

    Returns:
        The parser, to which further arguments can be added.
    """
    parser = add_command(subparsers, doc, run, allow_abbrev=False)
    parser.add_argument(
        "--config",
        required=required,
        metavar="RECIPE",
        help="the recipe: a YAML file, or a name that `grpo-ext recipes` lists",
    )
    parser.set_defaults(takes_overrides=True)
    return parser


def add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num_processes",
        type=at_least(1),
        metavar="N",
        help="number of training processes (default: that of the accelerate config, or 1)",
    )


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a function, for use as an argparse `type`, that parses integers >= `minimum`."""

    def parse(text: str) -> int:
        with suppress(ValueError):
            number = int(text)
            if number >= minimum:
                return number
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {minimum}; got {text!r}"
        )

    return parse
