"""`grpo-ext rewards`: list rewards, show one, or test their examples.

examples:
  grpo-ext rewards list
  grpo-ext rewards show accuracy
  grpo-ext rewards check --plugin my_rewards.py
"""

import argparse

from grpo_ext.cli.command import add_command
from grpo_ext.common.run_time import counted
from grpo_ext.rewards import RewardInfo, list_rewards
from grpo_ext.rewards.example_checks import check_reward
from grpo_ext.rewards.explanation import clip
from grpo_ext.rewards.registry import lookup
from grpo_ext.rewards.registry import names as registered_names
from grpo_ext.rewards.reward_specs import load_plugin
from grpo_ext.rewards.signature import REQUIRED


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    commands = add_command(subparsers, __doc__, run).add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    catalogue = commands.add_parser("list", help="list all rewards, with their columns and options")
    catalogue.set_defaults(work=run_list)
    show = commands.add_parser("show", help="show the meaning, columns and options of one reward")
    show.add_argument("name", metavar="NAME", help="name of the reward")
    show.set_defaults(work=run_show)
    check = commands.add_parser(
        "check", help="test the examples of rewards; exit code 1 if one fails"
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="rewards to test (default: all)")
    check.set_defaults(work=run_check)
    for command in (catalogue, show, check):
        command.add_argument(
            "--plugin",
            action="append",
            default=[],
            metavar="FILE",
            help="a Python file that registers rewards; repeatable",
        )


def run(args: argparse.Namespace) -> int:
    for path in args.plugin:
        load_plugin(path)
    return args.work(args)


def run_list(args: argparse.Namespace) -> int:
    catalogue = list_rewards()
    width = max(len(info.name) for info in catalogue)
    for info in catalogue:
        print(f"{info.name:{width}}  {info.summary}")
        details = []
        if info.columns:
            details.append(f"columns {', '.join(info.columns)}")
        if info.options or info.optional:
            details.append(f"options {options_with_defaults(info)}")
        if details:
            print(f"{'':{width}}  {'; '.join(details)}")
    return 0


def options_with_defaults(info: RewardInfo) -> str:
    """Format a reward's options, such as `mode='loose', target`; required ones have no default."""
    options = []
    for name, default in {**info.options, **info.optional}.items():
        options.append(name if default is REQUIRED else f"{name}={default!r}")
    return ", ".join(options)


def run_show(args: argparse.Namespace) -> int:
    info = lookup(args.name)
    print(f"{info.name}\n\n{info.doc}\n")
    print(f"Columns:  {', '.join(info.columns) or 'none'}")
    print(f"Options:  {options_with_defaults(info) or 'none'}")
    if info.optional:
        names = ", ".join(info.optional)
        print(f"          (an option that is not set is read from its column, if any: {names})")
    if info.needs_cpu:
        print("Runs in:  worker processes, if reward_workers is above 0")
    else:
        print("Runs in:  the training process")
    print("Examples:" if info.examples else "Examples: none")
    for example in info.examples:
        score = "None" if example.score is None else f"{example.score:.3g}"
        cells = [f"  {score:>5}", clip(repr(example.completion))]
        for name, argument in {**example.columns, **example.options}.items():
            cells.append(f"{name}={clip(repr(argument))}")
        print("  ".join(cells))
    return 0


def run_check(args: argparse.Namespace) -> int:
    for name in args.names:
        lookup(name)
    exit_code = 0
    for name in args.names or registered_names():
        faults, count = check_reward(name)
        verdict = "ok"
        if faults:
            verdict = "FAILED"
            exit_code = 1
        print(f"{verdict:6}  {name} ({counted(count, 'example')})")
        for fault in faults:
            print(f"        {fault}")
    return exit_code
