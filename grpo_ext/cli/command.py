"""The parsers of subcommands: the help of each is the docstring of its file, and most of them read a recipe."""

import argparse
from collections.abc import Callable
from typing import Any

Run = Callable[[argparse.Namespace], int]


def add_command(
    subparsers: argparse._SubParsersAction, doc: str | None, run: Run, **settings: Any
) -> argparse.ArgumentParser:
    """Return the parser of one subcommand, made with argparse's `settings`.

    `doc` begins with "`grpo-ext NAME`: what it does."; `--help` shows all of it.
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
    subparsers: argparse._SubParsersAction, doc: str | None, run: Run
) -> argparse.ArgumentParser:
    """Return the parser of a subcommand that reads a recipe, whose keys can be set as `--key value`."""
    parser = add_command(subparsers, doc, run, allow_abbrev=False)
    words = "a YAML file, or a name that `grpo-ext recipes` lists"
    parser.add_argument("--config", required=True, metavar="RECIPE", help=words)
    parser.set_defaults(takes_overrides=True)
    return parser


def add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num_processes",
        type=int,
        metavar="N",
        help="processes (default: the accelerate config's)",
    )


def at_least(least: int, kind: type = int) -> Callable[[str], Any]:
    """Return a reader of numbers of at least `least`, for argparse's `type`."""

    def read(text: str) -> Any:
        if not (number := kind(text)) >= least:
            raise ValueError(text)
        return number

    read.__name__ = (
        f"number of at least {least}"  # argparse: "invalid number of at least 2 value: '1'"
    )
    return read
