"""`grpo-ext explain`: explain in words why a completion got its reward.

examples:
  grpo-ext explain countdown --nums 19 36 55 7 --target 65 --completion "<answer>55 + 36 - 7 - 19</answer>"
  grpo-ext explain countdown --nums 3 4 5 --target 27 --completion "3 * (4 + 5)"
  grpo-ext explain poem --lines 水作青龙盘石堤 桃花夹岸鲁门西 若教月下乘舟去 --completion 一棹烟波去未迷
  grpo-ext explain poem --lines 白日依山尽 黄河入海流 欲穷千里目 更上一层楼 --tones pingshui

A reward can explain its scores if it is registered with `explain=`. `grpo-ext explain REWARD --help` lists its columns and
options.
"""

import argparse
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from grpo_ext.cli.command import add_command
from grpo_ext.cli.rewards import load_plugins, plugin_parser, read_value
from grpo_ext.rewards import RewardInfo, list_rewards
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.registry import lookup

Explain = Callable[..., Explanation]


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run, parents=[plugin_parser()])
    parser.add_argument("reward", metavar="REWARD", help="a reward with explanations, or the beginning of its name")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its columns, options and --completion")


def run(args: argparse.Namespace) -> int:
    load_plugins(args)
    entry, explain = explaining_reward(args.reward)
    given = vars(parser_of(entry, explain).parse_args(args.words))
    print(explanation(explain, given.pop("completion", None), given).words)
    return 0


def explaining_reward(name: str) -> tuple[RewardInfo, Explain]:
    """Return the reward `name`, or the first with explanations whose name begins so, and its function of explanations.

    `ValueError` if there is no such reward, or it has no explanations.
    """
    known = [entry.name for entry in list_rewards() if entry.explain]
    chosen = name if name in known else next((full for full in known if full.startswith(name)), name)
    if (entry := lookup(chosen)).explain:
        return entry, entry.explain
    raise ValueError(f"{name} has no explanations: register(..., explain=...). Rewards that have them: {', '.join(known)}.")


def parser_of(entry: RewardInfo, explain: Explain) -> argparse.ArgumentParser:
    """Return a parser of the arguments of `explain` as options, required if they have no default."""
    parser = argparse.ArgumentParser(prog=f"grpo-ext explain {entry.name}", description=entry.summary)
    hints = typing.get_type_hints(explain)
    for name, parameter in inspect.signature(explain).parameters.items():
        flags = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        settings: dict[str, Any] = {"required": parameter.default is parameter.empty, **option_of(hints.get(name, str))}
        if name == "completion":
            settings["help"] = "what the model wrote; text without tags counts as the answer"
        elif not settings["required"]:
            settings |= {"default": parameter.default, "help": f"default: {parameter.default}"}
        parser.add_argument(*flags, **settings)
    return parser


def option_of(hint: Any) -> dict[str, Any]:
    """Return argparse's settings of an option for a type."""
    if hint is bool:
        return {"action": "store_true"}
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is typing.Literal:
        return {"choices": inner}
    several = {"nargs": "+"} if kind in (list, Sequence) else {}
    return several if str in (hint, *inner) else {**several, "type": read_value}


def explanation(explain: Explain, completion: str | None, given: dict[str, Any]) -> Explanation:
    """Return the explanation of a completion; text without tags is tried again as an answer."""
    if completion is None:
        return explain(**given)
    found = explain(completion, **given)
    if "<" not in completion and not found.marks:
        tagged = explain(f"<answer>{completion}</answer>", **given)
        if any(kind == "answer" for _, _, kind, _ in tagged.marks):
            return tagged
    return found
