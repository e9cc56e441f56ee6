"""`grpo-ext rewards`: list rewards, show one, test their examples, score a file of completions.

examples:
  grpo-ext rewards list
  grpo-ext rewards show accuracy
  grpo-ext rewards score format --option mode=strict --input rows.jsonl
  grpo-ext rewards score accuracy --input rows.jsonl --output scored.jsonl --workers 4
  grpo-ext rewards check --plugin my_rewards.py
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from grpo_ext.cli.command import add_command
from grpo_ext.rewards import RewardInfo, list_rewards
from grpo_ext.rewards.explanation import clip
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.rewards.own_examples import check_reward
from grpo_ext.rewards.registry import lookup, names
from grpo_ext.rewards.signature import REQUIRED
from grpo_ext.rewards.sources import load_plugin, resolve_rewards

SCORE = """`grpo-ext rewards score`: score a file of completions.

examples:
  grpo-ext rewards score countdown --input rows.jsonl
  grpo-ext rewards score length --option target=200 --option unit=words --input rows.jsonl
  grpo-ext rewards score my_package.rewards:brief --input rows.jsonl --output -

Each line of the file is a JSON object: {"completion": "<answer>1+2</answer>", "nums": [1, 2], "target": 3}
"""
BATCH = 256


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    commands = add_command(subparsers, __doc__).add_subparsers(title="commands", metavar="COMMAND", required=True)
    plugins = [plugin_parser()]
    commands.add_parser("list", parents=plugins, help="all rewards, one on each line").set_defaults(run=run_list)
    show = commands.add_parser("show", parents=plugins, help="the meaning, columns and options of one reward")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=run_show)
    check = commands.add_parser("check", parents=plugins, help="test the examples of rewards; exit code 1 if one fails")
    check.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    check.set_defaults(run=run_check)

    add = add_command(commands, SCORE, run_score, parents=plugins).add_argument
    add("name", metavar="NAME", help="a registered reward, or package.module:function")
    add("--input", required=True, metavar="FILE", help="rows as JSON lines")
    add("--output", metavar="FILE", help="write the rows with their score under NAME; - for standard output")
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the reward")
    add("--column", default="completion", metavar="KEY", help="key of the completion (default: completion)")
    add("--workers", type=int, default=0, metavar="N", help="processes for CPU-heavy rewards (default 0: none)")
    add("--timeout", type=float, default=5.0, metavar="S", help="seconds a row may take (default 5)")


def run_list(args: argparse.Namespace) -> int:
    load_plugins(args)
    catalogue = list_rewards()
    width = max(len(info.name) for info in catalogue)
    for info in catalogue:
        print(f"{info.name:{width}}  {info.summary}")
        more = {"columns": ", ".join(info.columns), "options": options_of(info)}
        if any(more.values()):
            print(" " * width + "  " + "; ".join(f"{kind} {names}" for kind, names in more.items() if names))
    return 0


def options_of(info: RewardInfo) -> str:
    """Return the options with their defaults, such as `mode='loose', target`; a required option has none."""
    options = {**info.options, **info.optional}.items()
    return ", ".join(key if default is REQUIRED else f"{key}={default!r}" for key, default in options)


def run_show(args: argparse.Namespace) -> int:
    load_plugins(args)
    info = lookup(args.name)
    print(f"{info.name}\n\n{info.doc}\n")
    print(f"Columns:  {', '.join(info.columns) or 'none'}")
    print(f"Options:  {options_of(info) or 'none'}")
    if info.optional:
        print(f"          (unless set, the column is read if there is one: {', '.join(info.optional)})")
    where = "worker processes, if reward_workers is above 0" if info.needs_cpu else "the training process"
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
    [reward], _ = resolve_rewards([{"name": args.name, **dict(map(read_option, args.option))}], plugins=args.plugin)
    if isinstance(reward, str):
        raise ValueError(f"{args.name} is a reward model; this command runs functions.")
    [guard] = guard_rewards([reward], workers=args.workers, timeout=args.timeout, max_failure_rate=1.0)
    with ExitStack() as stack:
        output = sys.stdout if args.output == "-" else None
        if args.output and output is None:
            output = stack.enter_context(Path(args.output).open("w", encoding="utf-8"))
        scores = [score for score in score_file(guard, Path(args.input), args.column, output) if score is not None]
    mean = f"mean {fmean(scores):.4f}" if scores else "no mean"
    declined = guard.scored - len(scores) - guard.failed
    print(f"{guard.name}: {mean}, {guard.scored} rows, {declined} declined, {guard.failed} failed", file=sys.stderr)
    return 0


def score_file(guard: Any, path: Path, column: str, output: TextIO | None) -> Iterator[float | None]:
    """Yield the score of each row, with a progress bar, and write the row with its score to `output`."""
    from tqdm import tqdm

    with path.open("rb") as file:
        lines = enumerate(tqdm(file, desc=path.name, unit=" rows"), 1)
        rows = (read_row(line, column, f"{path}:{number}") for number, line in lines if line.strip())
        while batch := list(islice(rows, BATCH)):
            for row, score in zip(batch, guard(**as_columns(batch, column, guard.columns)), strict=True):
                if output:
                    print(json.dumps({**row, guard.name: score}), file=output)
                yield score


def read_row(line: bytes, column: str, place: str) -> dict[str, Any]:
    """Return the object of one line; `ValueError` with its place if it is not an object with a completion."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict) or column not in row:
        keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{place}: no {column!r} here, only {keys}. Name the completion's key with --column.")
    return row


def as_columns(rows: list[dict[str, Any]], column: str, needed: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return rows as the arguments of a reward: the completions, and the columns that every row has."""
    shared = set.intersection(*map(set, rows)) - {column, "completions", "prompt"}
    for name in needed:
        if name not in shared:
            raise ValueError(f"The reward reads the column {name!r}, which a row lacks; all have {', '.join(sorted(shared))}.")
    columns = {name: [row[name] for row in rows] for name in shared}
    return {"completions": [row[column] for row in rows], **columns}


def read_option(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, by `read_value`."""
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"--option {text}: write it as key=value.")
    return key, read_value(value)


def read_value(text: str) -> Any:
    """Return the value of JSON text, or any other text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def plugin_parser() -> argparse.ArgumentParser:
    """Return a parent of the parsers with the option `--plugin`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file that registers rewards")
    return parser


def load_plugins(args: argparse.Namespace) -> None:
    for path in args.plugin:
        load_plugin(path)
