"""Turns what a reward function returned into scores, and what it raised into text."""

import inspect
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_ext.rewards.deadline import TooLate
from grpo_ext.rewards.reward import Score

SHOWN = 500  # characters of a value that a message shows
LARGEST = 1e12  # a score; its square times the square of a weight is finite in float32, in which training computes
PACKAGE = Path(__file__).parents[1]
# Files whose frames stand between this package and a user's code.
MACHINERY = {
    str(PACKAGE / folder / f"{name}.py")
    for folder, names in {
        "rewards": ("guard", "scores", "reward", "worker", "deadline"),
        "environments": ("guarded", "tools", "rules"),
    }.items()
    for name in names
}
STANDARD_LIBRARY = str(Path(traceback.__file__).parent)


class Miscounted(ValueError):
    """A reward returned more or fewer scores than there are completions."""


def scores_of(answers: Any, count: int) -> tuple[list[Score], dict[int, str]]:
    """Return the scores of `count` completions and, by row, the errors of answers that are no score.

    `TypeError` if the answers are not a list, `Miscounted` if their number is not `count`.
    """
    if answers is None or isinstance(answers, str | bytes | dict):
        raise TypeError(f"it returned {clipped(answers)} and not a list of {count} scores")
    if len(answers := list(answers)) != count:
        raise Miscounted(f"it returned {len(answers)} scores for {count} completions")
    scores: list[Score] = []
    errors: dict[int, str] = {}
    for row, answer in enumerate(answers):
        try:
            scores.append(as_score(answer))
        except Exception as error:  # a foreign type's __float__ may raise anything
            scores.append(None)
            errors[row] = f"{type(error).__name__}: {error}"
    return scores, errors


def as_score(answer: Any) -> Score:
    """Return a finite float or None; raise for any other answer."""
    if answer is None:
        return None
    if not hasattr(answer, "__float__") and not hasattr(answer, "__index__"):
        raise TypeError(f"it returned {clipped(answer)}, which is no number")
    score = float(answer)
    if not abs(score) <= LARGEST:
        raise ValueError(
            f"it returned {score}" + (f", beyond {LARGEST:g}" if math.isfinite(score) else "")
        )
    return score


def in_full(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Return the end of an error's traceback. The last line names the error and its place in the user's own file.

    `function` is the user's code that was called. Its first line is the place of an error that was raised about it, such as
    one about what it returned.
    """
    if isinstance(error, TooLate):
        error.__context__ = None  # the text of the error that was being handled may have hung
    details = traceback.TracebackException.from_exception(error)
    above = list(details.format())[: -len(list(details.format_exception_only()))]
    frames = [frame for frame in details.stack if frame.filename not in MACHINERY]
    users = [frame for frame in frames if not in_standard_library(frame.filename)] or frames
    own = [frame for frame in users if frame.filename == users[0].filename]
    place = ""
    if own:
        place = f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})"
    elif function is not None and hasattr(inspect.unwrap(function), "__code__"):
        code = inspect.unwrap(function).__code__
        place = f" ({code.co_filename}:{code.co_firstlineno}, in {code.co_name})"
    message = " ".join(str(details).split())[:SHOWN]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return with_escapes(f"{''.join(above)[-6 * SHOWN :]}{what}{place}".strip())


def in_standard_library(path: str) -> bool:
    """Return whether a source file is one of Python's own, such as those of `asyncio` between an await and its coroutine."""
    return path.startswith(STANDARD_LIBRARY) and "site-packages" not in path


def clipped(value: Any) -> str:
    """Return a `repr` of bounded length, also where `repr` raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
    return with_escapes(text)


def with_escapes(text: str) -> str:
    """Return a text whose characters a log and a terminal can show; all others but line breaks become backslash escapes."""
    return "".join(
        character
        if character.isprintable() or character == "\n"
        else character.encode("unicode_escape").decode()
        for character in text
    )
