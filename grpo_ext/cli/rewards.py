"""`grpo-ext rewards`: what can judge a completion, and how it judges yours.

examples:
  grpo-ext rewards list
  grpo-ext rewards show accuracy
  grpo-ext rewards score format --option mode=strict --input rows.jsonl
  grpo-ext rewards score accuracy --input rows.jsonl --output scored.jsonl --workers 4
  grpo-ext rewards check --plugin my_rewards.py
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from grpo_ext.cli.command import add_command

if TYPE_CHECKING:
    from grpo_ext.rewards import RewardInfo

SCORE = """`grpo-ext rewards score`: score a file of completions.

examples:
  grpo-ext rewards score countdown --input rows.jsonl
  grpo-ext rewards score length --option target=200 --option unit=words --input rows.jsonl
  grpo-ext rewards score my_package.rewards:brief --input rows.jsonl --output -

A row is a JSON object a line: {"completion": "<answer>1+2</answer>", "nums": [1, 2], "target": 3}
"""
BATCH = 256


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    plugins = [plugin_parser()]
    listing = commands.add_parser("list", parents=plugins, help="all rewards, a line each")
    listing.set_defaults(run=run_list)

    show = commands.add_parser("show", parents=plugins, help="one reward: what it means, reads and takes")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=run_show)

    words = "run the rewards' own examples; exit code 1 if one fails"
    check = commands.add_parser("check", parents=plugins, help=words)
    check.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    check.set_defaults(run=run_check)

    add = add_command(commands, SCORE, run_score, parents=plugins).add_argument
    add("name", metavar="NAME", help="a registered reward, or package.module:function")
    add("--input", required=True, metavar="FILE", help="rows as JSON lines")
    add("--output", metavar="FILE", help="write the rows with their score under NAME; - for standard output")
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the reward")
    add("--column", default="completion", metavar="KEY", help="where the completion is (default: completion)")
    add("--workers", type=int, default=0, metavar="N", help="processes for CPU-heavy rewards (default 0: none)")
    add("--timeout", type=float, default=5.0, metavar="S", help="seconds a row may take (default 5)")


def run_list(args: argparse.Namespace) -> int:
    load_plugins(args)
    from grpo_ext.rewards import list_rewards

    catalogue = list_rewards()
    width = max(len(info.name) for info in catalogue)
    for info in catalogue:
        print(f"{info.name:{width}}  {info.summary}")
        more = {"reads": ", ".join(info.columns), "takes": options_of(info)}
        if any(more.values()):
            print(" " * width + "  " + "; ".join(f"{verb} {what}" for verb, what in more.items() if what))
    return 0


def options_of(info: RewardInfo) -> str:
    """`mode='loose', target`: with its default, but for one that must be given."""
    from grpo_ext.rewards.signature import REQUIRED

    options = {**info.options, **info.optional}.items()
    return ", ".join(key if default is REQUIRED else f"{key}={default!r}" for key, default in options)


def run_show(args: argparse.Namespace) -> int:
    load_plugins(args)
    from grpo_ext.rewards.explanation import clip
    from grpo_ext.rewards.registry import lookup

    info = lookup(args.name)
    print(f"{info.name}\n\n{info.doc}\n")
    print(f"Columns:  {', '.join(info.columns) or 'none'}")
    print(f"Options:  {options_of(info) or 'none'}")
    if info.optional:
        print(f"          (unless set, the column is read if there is one: {', '.join(info.optional)})")
    where = "worker processes where reward_workers is above 0" if info.needs_cpu else "the training process"
    print(f"Runs in:  {where}")
    print("Examples:" if info.examples else "Examples: none")
    for example in info.examples:
        given = {**example.columns, **example.options}.items()
        extras = "".join(f"  {key}={clip(repr(value))}" for key, value in given)
        score = "None" if example.score is None else f"{example.score:.3g}"
        print(f"  {score:>5}  {clip(repr(example.completion))}{extras}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    load_plugins(args)
    from grpo_ext.rewards.own_examples import check_reward
    from grpo_ext.rewards.registry import lookup, names

    for name in args.names:
        lookup(name)
    wrong = 0
    for name in args.names or names():
        faults, count = check_reward(name)
        wrong += bool(faults)
        print(f"{'FAILED' if faults else 'ok':6}  {name} ({count} examples)")
        for fault in faults:
            print(f"        {fault}")
    return 1 if wrong else 0


def run_score(args: argparse.Namespace) -> int:
    from grpo_ext.rewards.guard import Guard
    from grpo_ext.rewards.pool import RewardPool
    from grpo_ext.rewards.sources import resolve_rewards

    [reward], _ = resolve_rewards([{"name": args.name, **dict(map(read_option, args.option))}], plugins=args.plugin)
    if isinstance(reward, str):
        raise ValueError(f"{args.name} is a reward model; this command runs functions.")
    with ExitStack() as stack:
        pool = stack.enter_context(RewardPool(args.workers, timeout=args.timeout)) if args.workers else None
        guard = Guard(reward, pool=pool, timeout=args.timeout, max_failure_rate=1.0)
        output = sys.stdout if args.output == "-" else None
        if args.output and output is None:
            output = stack.enter_context(Path(args.output).open("w", encoding="utf-8"))
        total, scored = score_file(guard, Path(args.input), args.column, output)
    mean = f"mean {total / scored:.4f}" if scored else "no mean"
    unscored = guard.scored - scored - guard.failed
    print(f"{guard.name}: {mean}, {guard.scored} rows, {unscored} declined, {guard.failed} failed", file=sys.stderr)
    return 0


def score_file(guard: Any, path: Path, column: str, output: TextIO | None) -> tuple[float, int]:
    """The sum of the scores and how many there are; each row goes to `output` with its own."""
    total, scored = 0.0, 0
    for rows in batches(path, column):
        scores = guard(**as_columns(rows, column, guard.columns))
        total += sum(score for score in scores if score is not None)
        scored += sum(score is not None for score in scores)
        if output is not None:
            for row, score in zip(rows, scores, strict=True):
                print(json.dumps({**row, guard.name: score}), file=output)
    return total, scored


def batches(path: Path, column: str) -> Iterator[list[dict[str, Any]]]:
    """The file's rows, some at a time, with a progress bar over its bytes."""
    from tqdm import tqdm

    with path.open("rb") as lines, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=path.name) as bar:
        numbered = enumerate(lines, 1)
        while batch := list(islice(numbered, BATCH)):
            if rows := [read_row(line, column, f"{path}:{number}") for number, line in batch if line.strip()]:
                yield rows
            bar.update(sum(len(line) for _, line in batch))


def read_row(line: bytes, column: str, place: str) -> dict[str, Any]:
    """One line's object; `ValueError` with its place if it is none or has no completion."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict) or column not in row:
        keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{place}: no {column!r} here, only {keys}. Name the completion's key with --column.")
    return row


def as_columns(rows: list[dict[str, Any]], column: str, needed: tuple[str, ...]) -> dict[str, list[Any]]:
    """Rows as the arguments of a reward: the completions, and the columns that every row has."""
    shared = set.intersection(*map(set, rows)) - {column, "completions", "prompt"}
    for name in needed:
        if name not in shared:
            there = ", ".join(sorted(shared))
            raise ValueError(f"The reward reads the column {name!r}, which a row lacks. There: {there}.")
    columns = {name: [row[name] for row in rows] for name in shared}
    return {"completions": [row[column] for row in rows], **columns}


def read_option(text: str) -> tuple[str, Any]:
    """`key=value`, the value as `read_value` has it."""
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--option {text}: write it as key=value.")
    return key, read_value(value)


def read_value(text: str) -> Any:
    """What JSON reads, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plugin_parser() -> argparse.ArgumentParser:
    """The option `--plugin`, a parent of the parsers that have it."""
    parser = argparse.ArgumentParser(add_help=False)
    words = "a Python file that registers more"
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help=words)
    return parser


def load_plugins(args: argparse.Namespace) -> None:
    from grpo_ext.rewards.sources import load_plugin

    for path in args.plugin:
        load_plugin(path)
