"""`grpo-ext tasks`: the tasks that come with the package, to name in a recipe after `task:`.

examples:
  grpo-ext tasks
"""

import argparse

from grpo_ext.cli.command import add_command
from grpo_ext.tasks import task_classes


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    add_command(subparsers, __doc__, list_tasks)


def list_tasks(args: argparse.Namespace) -> int:
    """Print each task's name with the first sentence of its docstring."""
    for name, cls in task_classes().items():
        print(f"{name:15} {(cls.__doc__ or '').partition('.')[0]}.")
    return 0
