"""`grpo-ext tasks`: the tasks and environments of the package, to name in a recipe after `task:` and `environment:`.

examples:
  grpo-ext tasks
"""

import argparse

from grpo_ext.cli.command import add_command
from grpo_ext.environments.base import environment_classes, options_of
from grpo_ext.tasks import task_classes


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add_command(subparsers, __doc__, list_tasks)


def list_tasks(args: argparse.Namespace) -> int:
    """Print each name with the first sentence of its docstring, and the options of each environment."""
    print("task:")
    for name, task in task_classes().items():
        print(f"  {name:15} {summary(task)}")
    print("environment:")
    for name, environment in environment_classes().items():
        options = ", ".join(f"{key}={default!r}" for key, default in options_of(environment).items())
        print(f"  {name:15} {summary(environment)}{f' Takes {options}.' if options else ''}")
    return 0


def summary(cls: type) -> str:
    """Return the first sentence of a class's docstring."""
    return (cls.__doc__ or "").partition(".")[0] + "."
