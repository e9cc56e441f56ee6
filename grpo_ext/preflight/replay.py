"""Replay an episode from `samples.jsonl`, and compare it with its line, which is untrusted."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from grpo_ext.common.foreign_files import lines_of, open_plain
from grpo_ext.environments.episode import Episode, seed_of
from grpo_ext.environments.episode_rules import COLUMNS
from grpo_ext.observe.jsonl import FieldType, encoded, row_of
from grpo_ext.observe.log_files import SAMPLE
from grpo_ext.observe.read_run import mappings
from grpo_ext.preflight.first_rows import Row
from grpo_ext.run.from_recipe import Rows

MOST_CHARACTERS = 2**20  # maximum length of a turn
# additional fields of a line that contains an episode
EPISODE: dict[str, FieldType] = {"seed": object, "messages": list, "ids_checksum": int}


def row_of_sample(rows: Rows, sample: Row) -> Row:
    """Return the row that has the same seed, columns and prompt as a line of `samples.jsonl`.

    Raises:
        ValueError: if there is no such row.
    """
    for row in rows:
        if logged_value(seed_of(row)) == sample["seed"] and fits(row, sample):
            return row
    raise ValueError(
        "No row of the recipe has the seed, the columns and the prompt of this line, so the line "
        "cannot be replayed. Use the recipe.yaml of the run that wrote it, and the same data."
    )


def fits(row: Row, sample: Row) -> bool:
    """Return whether a logged sample can come from a row.

    The logged columns must have the row's values, and the logged prompt must consist of the row's
    messages. The last message may be longer in the log, because `reset` can add text to it. Columns
    in `COLUMNS`, which belong to the episode, and prompts that are plain strings are not compared.
    """
    columns = sample.get("columns")
    if isinstance(columns, dict):
        for name, value in columns.items():
            if name in COLUMNS:
                continue
            if name not in row or logged_value(row[name]) != value:
                return False
    prompt = logged_value(row.get("prompt"))
    if not isinstance(prompt, list):
        return True
    logged_prompt = mappings(sample["prompt"])
    if len(prompt) != len(logged_prompt) or prompt[:-1] != logged_prompt[:-1]:
        return False
    return str(logged_prompt[-1].get("content")).startswith(str(prompt[-1]["content"]))


def logged_value(value: object) -> Any:
    """Return `value` as it would be read back from a log."""
    return row_of(encoded({"value": value}))["value"]


def read_sample(path: Path, number: int) -> Row:
    """Read the line of `samples.jsonl` that contains the episode to replay.

    Args:
        path: the file, which is untrusted.
        number: the number of the line, counted from 1.

    Raises:
        ValueError: if there is no such line, or the line contains no episode.
        OSError: if the file cannot be read, or the line or an earlier one is too long.
    """
    try:
        return row_of(nth_line(path, number), {**SAMPLE, **EPISODE})
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Line {number} of {path} cannot be replayed: {error}. With --line, choose a line that "
            "contains an episode."
        ) from error


def nth_line(path: Path, number: int) -> bytes:
    """Return the line of a file with the given number, counted from 1.

    Raises:
        ValueError: if there is no such line.
        OSError: if the file cannot be opened, or a line is too long.
    """
    count = 0
    with open_plain(path) as file:
        for line in lines_of(file, path):
            count += 1
            if count == number:
                return line
    raise ValueError(f"the file ends with line {count}" if count else "the file is empty")


def play_again(episode: Episode, sample: Row) -> None:
    """Replay the turns of a logged episode with the logged tokens.

    The episode gets no more room than the logged one had. It is cut off if it has not ended after
    the last logged turn.

    Args:
        episode: an episode that has begun with the row of the sample; it is changed in place.
        sample: a line of `samples.jsonl`.

    Raises:
        ValueError: if a logged turn is malformed, or its tokens are not token ids of the model.
    """
    turns = []
    for message in mappings(sample["messages"]):
        if message.get("role") == "assistant" and "raw" in message:
            turns.append(message)
    room = sample.get("room")  # an untrusted file may contain anything
    if not turns:  # the prompt left no room
        episode.limit(0)
    elif isinstance(room, int):
        episode.limit(min(room, episode.room))
    for turn in turns:
        if episode.ended:
            return
        episode.play_turn(ids_of_turn(episode, turn))
    if not episode.ended:  # the engine had less room
        episode.cut_off()


def ids_of_turn(episode: Episode, message: Row) -> list[int]:
    """Return the token ids of a logged turn; if none were logged, encode the turn's text.

    Raises:
        ValueError: if the text is not a string or is too long, or the logged ids are not token ids
            of the model.
    """
    raw = message["raw"]
    ids = message.get("raw_ids")
    if not isinstance(raw, str) or len(raw) > MOST_CHARACTERS:
        raise ValueError(
            "This line cannot be replayed: the `raw` of one of its turns is not a string, or "
            f"is longer than {MOST_CHARACTERS:,} characters. Choose another line with --line."
        )
    if ids is None:
        return episode.tokens.tokens_of(raw)
    size = len(episode.tokens.tokenizer)
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise ValueError(
            f"The `raw_ids` of the turn {raw[:80]!r} are not a list of integers. Choose another "
            "line with --line."
        )
    if all(0 <= token < size for token in ids):
        return ids
    raise ValueError(
        f"The `raw_ids` of the turn {raw[:80]!r} are not token ids of this model. Set "
        "model_name_or_path to the model used in the run, or choose another line with --line."
    )


def differences(episode: Episode, scores: dict[str, float | None], sample: Row) -> list[str]:
    """Return a description of each difference between a replayed episode and its logged line.

    Of the messages, only the first one that differs is described. Scores are rounded to float32
    before they are compared, because training computes them in float32.

    Args:
        episode: the replayed episode.
        scores: the score of each reward for the replayed episode.
        sample: the logged line.
    """
    found = []
    if episode.ids_checksum() != sample["ids_checksum"]:
        found.append("tokens: the checksum differs")
    replayed = mappings(logged_value(episode.logged()["messages"]))
    logged = mappings(sample["messages"])
    pairs = zip_longest(contents_of(replayed), contents_of(logged), fillvalue="no message")
    for number, (content, logged_content) in enumerate(pairs, 1):
        if content != logged_content:
            found.append(f"message {number}: {content!r:.200}, not {logged_content!r:.200}")
            break
    reason = "length" if episode.truncated else "stop"
    if reason != sample["finish_reason"]:
        found.append(f"finish_reason: {reason}, not {sample['finish_reason']:.80}")
    for name, score in scores.items():
        logged_score = sample["rewards"].get(name)
        if in_float32(score) != in_float32(logged_score):
            found.append(f"reward {name}: {score}, not {logged_score}")
    return found


def contents_of(messages: list[Row]) -> list[object]:
    return [message.get("content") for message in messages]


def in_float32(score: float | None) -> float | None:
    return None if score is None else float(np.float32(score))
