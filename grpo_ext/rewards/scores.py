"""Turns what a reward function returned into scores, and what it raised into text."""

import math
import traceback
from pathlib import Path
from typing import Any

from grpo_ext.rewards.reward import Score

SHOWN = 500  # characters of a value that a message shows
LARGEST = 1e12  # a score; its square times the square of a weight is finite in float32, in which training computes
MACHINERY = {
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("guard", "scores", "reward", "worker", "deadline")
}


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


def in_full(error: BaseException) -> str:
    """Return the end of an error's traceback. The last line names the error and its place in the reward's own file."""
    details = traceback.TracebackException.from_exception(error)
    above = list(details.format())[: -len(list(details.format_exception_only()))]
    frames = [frame for frame in details.stack if frame.filename not in MACHINERY]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""
    message = " ".join(str(details).split())[:SHOWN]
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{''.join(above)[-6 * SHOWN :]}{what}{place}".strip()


def clipped(value: Any) -> str:
    """Return a `repr` of bounded length, also where `repr` raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
