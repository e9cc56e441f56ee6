"""`grpo-ext`: GRPO training on top of Hugging Face TRL, with recipes, rewards and evaluation.

examples:
  grpo-ext demo                                        train a tiny model, offline, in minutes
  grpo-ext migrate run.sh --output mine.yaml           convert a TRL, open-r1, ms-swift or verl run
  grpo-ext check --config countdown/tiny               find problems in a recipe before a run
  grpo-ext train --config countdown/tiny               train from a recipe
  grpo-ext train --config RECIPE --learning_rate 1e-5  override any key of the recipe
  grpo-ext eval --config RECIPE --model BEFORE --model AFTER
  grpo-ext report runs/countdown-tiny                  write curves and completions to an HTML file

exit codes: 0 done; 1 a check or a run failed; 2 the command, the recipe or its data cannot be used;
75 a signal ended the run, which can be continued from its checkpoint; 130 interrupted by Ctrl-C;
141 the program that reads the output has exited; 143 ended by SIGTERM
"""

import argparse
import os
import sys
import warnings
from importlib import import_module

from grpo_ext.common.devices import wait_calmly
from grpo_ext.common.modules import versions
from grpo_ext.common.termination import EXIT_TERMINATED, Terminated, terminable
from grpo_ext.common.untrusted import printable
from grpo_ext.rewards.scores import UserCodeFailure
from grpo_ext.vllm import EngineFailure

EXIT_NO_READER = 141  # the exit code of a Unix tool that SIGPIPE ends
SUBCOMMANDS = (
    "init",
    "migrate",
    "recipes",
    "data",
    "check",
    "plan",
    "play",
    "bench",
    "numerics",
    "train",
    "serve",
    "sft",
    "eval",
    "merge",
    "report",
    "demo",
    "reproduce",
    "rewards",
)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all subcommands."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="grpo-ext", description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--version",
        action="store_true",
        help="show the versions of grpo_ext and its dependencies, and exit",
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="show the traceback of an error; put this option before COMMAND",
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in SUBCOMMANDS:
        import_module(f"grpo_ext.cli.{name}").add_parser(subparsers)
    return parser


def main(words: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code.

    `words` are the command-line arguments; if `None`, those in `sys.argv` are used. Errors are
    printed without a traceback, unless `--debug` is set, in which case they are raised.

    Raises:
        SystemExit: after `--help`, or if an argument is invalid.
    """
    wait_calmly()
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--version"]:
        for package, version in versions().items():
            print(f"{package} {version}")
        return 0
    parser = make_parser()
    args, overrides = parser.parse_known_args(words)
    if overrides and not args.takes_overrides:
        parser.error(f"unrecognized arguments: {' '.join(overrides)}")
    args.overrides = overrides
    # transformers warns about its own options
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        with terminable():
            code = args.run(args)
        sys.stdout.flush()
        return code
    except Terminated:
        return EXIT_TERMINATED
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, BrokenPipeError) and has_no_reader():
            return EXIT_NO_READER
        if args.debug:
            raise
        return print_error(error)


def has_no_reader() -> bool:
    """Return whether the program that reads standard output, such as `head`, has exited.

    To find out, this prints an empty line. If there is no reader, this also discards the remaining
    output, so that Python does not report an error when this process exits.
    """
    try:
        print(flush=True)  # a flush alone has nothing to write if Python has dropped the text
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


def print_error(error: Exception) -> int:
    """Print an error without its traceback, and return its exit code.

    The code is 2 for a `ValueError` or `OSError`, which the user can correct, and 1 for others.
    """
    message = printable(str(error))
    if isinstance(error, ValueError | OSError):
        print(f"grpo-ext: {message}", file=sys.stderr)
        return 2
    if not isinstance(error, UserCodeFailure | EngineFailure):
        message = f"{type(error).__name__}: {message} (`grpo-ext --debug` shows where)"
    print(f"grpo-ext: {message}", file=sys.stderr)
    return 1
