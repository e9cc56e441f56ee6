"""`grpo-ext explain`: why a completion got its reward, in words."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  grpo-ext explain countdown --nums 19 36 55 7 --target 65 --completion "<answer>55 + 36 - 7 - 19</answer>"
  grpo-ext explain countdown --nums 3 4 5 --target 27 --completion "3 * (4 + 5)"
  grpo-ext explain poem --lines 水作青龙盘石堤 桃花夹岸鲁门西 若教月下乘舟去 --completion 一棹烟波去未迷
  grpo-ext explain poem --lines 白日依山尽 黄河入海流 欲穷千里目 更上一层楼 --tones pingshui
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "explain",
        help="why a completion got its reward",
        description=f"Say in words why a completion got its reward.\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    rewards = parser.add_subparsers(title="rewards", metavar="REWARD", required=True)

    countdown = rewards.add_parser("countdown", help="an equation that must use given numbers and make a target")
    countdown.add_argument("--nums", nargs="+", type=number, required=True, metavar="N", help="the given numbers")
    countdown.add_argument("--target", type=number, required=True, metavar="N", help="the number to make")
    countdown.add_argument(
        "--completion",
        required=True,
        metavar="TEXT",
        help="what the model wrote; text without tags is taken as the answer",
    )
    countdown.set_defaults(run=run_countdown)

    poem = rewards.add_parser("poem", help="the last line of Chinese regulated verse")
    poem.add_argument(
        "--lines", nargs="+", required=True, metavar="LINE", help="the given lines, 3 or 7; or the whole poem"
    )
    poem.add_argument("--completion", metavar="TEXT", help="what the model wrote (default: the last of --lines)")
    poem.add_argument("--tones", default="modern", choices=("modern", "pingshui"), help="default: modern")
    poem.add_argument("--rhyme-book", default="pingshui", choices=("pingshui", "xinyun"), help="default: pingshui")
    poem.add_argument("--strict", action="store_true", help="positions 1, 3 and 5 count, too")
    poem.set_defaults(run=run_poem)


def number(text: str) -> int | float:
    """A number as it is written, whole ones without a point."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def run_countdown(args: argparse.Namespace) -> int:
    from grpo_ext.rewards.countdown_reward import explain_countdown

    completion = args.completion if "<" in args.completion else f"<answer>{args.completion}</answer>"
    print(explain_countdown(completion, args.nums, args.target))
    return 0


def run_poem(args: argparse.Namespace) -> int:
    from grpo_ext.rewards.poem import explain_poem

    lines, completion = args.lines, args.completion
    if completion is None:
        *lines, completion = lines
    print(explain_poem(lines, completion, tones=args.tones, rhyme_book=args.rhyme_book, strict=args.strict))
    return 0
