"""`grpo-ext play`: play one episode of a recipe's environment.

examples:
  grpo-ext play --config guess/tiny                       type the turns
  grpo-ext play --config mine.yaml --turns turns.txt      one turn per line, or a JSON list
  grpo-ext play --config mine.yaml --by-model --row 3
  grpo-ext play --config runs/mine/recipe.yaml --replay runs/mine/samples.jsonl --line 12

The episode uses the same chat template, limits and tools as training, and failures of the
environment are handled in the same way. Without --turns, --by-model or --replay, each line that you
type is a turn; with --blank_line, a turn is everything up to a blank line. End of file (Ctrl-D)
ends the episode. Type special tokens and the markup of tool calls as the model writes them; the end
token is added. --replay plays a line of samples.jsonl again, token by token, and says whether
tokens, answers and rewards match those in the line.
Any key of the recipe can be set as --key value, such as --model_name_or_path runs/mine.

exit codes: 0 played; 1 the replay differs from the recorded line; 2 the recipe or a file cannot be
used
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ext.cli.command import add_recipe_command, at_least
from grpo_ext.common.modules import without_collector
from grpo_ext.common.run_time import counted
from grpo_ext.common.untrusted import printable

if TYPE_CHECKING:
    from grpo_ext.environments.episode import Episode
    from grpo_ext.preflight.play_recipe import Game

ENDS = {
    "environment": "the environment ended the episode",
    "single turn": "the row has no environment, so its completion is one turn",
    "turns": "the episode has reached the limit of turns",
    "failures": "the environment failed too often",
    "room": "cut off: no room, turns or input were left",
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--turns", type=Path, metavar="FILE", help="play the turns in this file")
    ways.add_argument("--by-model", action="store_true", help="let the recipe's model play")
    ways.add_argument(
        "--replay", type=Path, metavar="SAMPLES", help="play a line of this samples.jsonl again"
    )
    parser.add_argument(
        "--line",
        type=at_least(1),
        default=1,
        metavar="N",
        help="line that --replay plays (default: 1)",
    )
    parser.add_argument(
        "--row", type=at_least(1), default=1, metavar="N", help="training row to play (default: 1)"
    )
    parser.add_argument(
        "--blank_line",
        action="store_true",
        help="end a typed turn at a blank line, so that it can have several lines",
    )


def run(args: argparse.Namespace) -> int:
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides)
    with without_collector():
        from grpo_ext.preflight import play_recipe, replay

    sample = replay.read_sample(args.replay, args.line) if args.replay else None
    turns = play_recipe.read_turns(args.turns) if args.turns else None
    game = play_recipe.begin_game(recipe, args.row, sample)
    episode = game.episode
    room = episode.room
    show("prompt", str(episode.tokens.tokenizer.decode(episode.prompt_ids)))
    if sample is not None:
        replay.play_again(episode, sample)
    elif turns is not None:
        play_recipe.played_turns(game, turns)
    elif args.by_model:
        episode = game.play_by_model()
    else:
        play_typed(game, args.blank_line)
    show_messages(episode)
    scores = game.scores(episode)
    show_end(episode, room, scores)
    if sample is None:
        return 0
    found = replay.differences(episode, scores, sample)
    for difference in found:
        print(f"differs  {printable(difference)}")
    if not found:
        print(f"tokens, answers and rewards match line {args.line} of {args.replay}")
    return 1 if found else 0


def play_typed(game: "Game", until_blank: bool) -> None:
    """Play the turns that a person types, and show each answer of the environment.

    If the input ends before the episode, the episode is cut off.

    Args:
        game: the episode, which has begun, with everything that is needed to play it.
        until_blank: whether a turn ends with a blank line instead of a line break.
    """
    episode = game.episode
    for text in typed_turns(until_blank):
        count = len(episode.messages)
        game.play_text(text)
        for message in episode.messages[count + 1 :]:
            show("answer", message["content"])
        if episode.ended:
            break
        print(f"         {len(episode.ids)} of {episode.room} tokens used")
    if not episode.ended:
        episode.cut_off()


def typed_turns(until_blank: bool) -> Iterator[str]:
    """Prompt for turns on standard input, and yield each one until the input ends.

    A turn is one line or, with `until_blank`, all lines up to a blank line or the end of the input.
    """
    lines: list[str] = []
    print("turn     ", end="", flush=True)
    for line in sys.stdin:
        lines.append(line.rstrip("\n"))
        if until_blank and lines[-1]:
            continue
        if until_blank:
            lines.pop()
        yield "\n".join(lines)
        lines = []
        print("turn     ", end="", flush=True)
    print()
    if lines:
        yield "\n".join(lines)


def show_messages(episode: "Episode") -> None:
    """Print the turns as the model wrote them, with their lengths in tokens, and the answers."""
    turns = iter(episode.turn_ids())
    for message in episode.messages:
        if message["role"] == "assistant":
            ids = next(turns, [])
            show(f"turn of {len(ids)} tokens", episode.tokens.as_written(ids)["raw"])
        else:
            show("answer", message["content"])


def show_end(episode: "Episode", room: int, scores: dict[str, Any]) -> None:
    """Print why an episode ended, its numbers of tokens and failed calls, and its rewards.

    Args:
        episode: the episode, which has ended or was cut off.
        room: the maximum number of tokens in the episode, without the prompt.
        scores: the score of each reward; `None` if the reward gave none.
    """
    by_model = sum(episode.mask)
    end = "single turn" if episode.single_turn and not episode.truncated else episode.end
    print(f"end      {ENDS[end]}, after {counted(episode.turns, 'turn')}")
    print(
        f"tokens   {len(episode.ids)} of {room} used: {by_model} by the model, "
        f"{len(episode.ids) - by_model} by the environment; {len(episode.prompt_ids)} in the prompt"
    )
    for count in episode.rules.failures.methods.values():
        if count.failed:
            title = f"{count.failed} of {count.calls} calls failed"
            show(title, f"{count.name}: {count.last_error}")
    for name, score in scores.items():
        print(f"reward   {printable(name)} {'-' if score is None else f'{score:.4g}'}")


def show(title: str, text: str) -> None:
    """Print output of a model or an environment under a title, with control characters escaped."""
    print(title)
    for line in printable(text).split("\n"):
        print(f"         | {line}")
