"""`grpo-ext`: the list of subcommands, and the exit codes.

0: done. 1: it ran and the answer is no (a check that failed, a run that broke). 2: the command, the recipe or its data cannot
be used.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib import import_module

from grpo_ext import __version__
from grpo_ext.rewards.guard import RewardFailure

SUBCOMMANDS = ("check", "plan", "train", "sft", "eval", "demo", "rewards", "explain")

EXAMPLES = """\
examples:
  grpo-ext demo                                            train a tiny model on Countdown, offline, in minutes
  grpo-ext train --config recipes/countdown/tiny.yaml      train as a recipe says
  grpo-ext train --config RECIPE --learning_rate 1e-5      any key of a recipe can be set here
  grpo-ext eval --config RECIPE --model runs/countdown-tiny/grpo
  grpo-ext rewards list                                    what can judge a completion

exit codes: 0 done; 1 it ran and failed; 2 the command, the recipe or its data cannot be used
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="grpo-ext",
        description="GRPO training with Hugging Face TRL: recipes, rewards, evaluation.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"grpo_ext {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in SUBCOMMANDS:
        import_module(f"grpo_ext.cli.{name}").add_parser(subparsers)
    return parser


def main(words: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = make_parser()
    args, rest = parser.parse_known_args(words)
    if rest and not getattr(args, "takes_overrides", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.overrides = rest
    # transformers warns that it will rename options of its own
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        return args.run(args)
    except (ValueError, OSError) as error:
        if args.debug:
            raise
        print(f"grpo-ext: {error}", file=sys.stderr)
        return 2
    except RewardFailure as error:
        print(f"grpo-ext: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
