"""Convert a reward function's results to scores, and its exceptions to text.

`FailureCount` counts the failures of user code, such as a reward or an environment's method.
"""

import inspect
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from grpo_ext.common.run_time import counted
from grpo_ext.common.untrusted import printable
from grpo_ext.common.user_code import TooLate
from grpo_ext.rewards.reward import Score

MAX_SHOWN = 500  # characters of a value that a message shows
# The square of a score times the square of a weight must be finite in float32, because training
# computes in float32.
LARGEST = 1e12
PACKAGE = Path(__file__).parents[1]
# Files that call user code. An error is never located in their frames.
MACHINERY = {
    str(PACKAGE / name)
    for name in (
        "rewards/guard.py",
        "rewards/scores.py",
        "rewards/reward.py",
        "rewards/worker.py",
        "rewards/deadline.py",
        "environments/background.py",
        "environments/guarded.py",
        "environments/open_environments.py",
        "environments/tools.py",
        "environments/episode_rules.py",
    )
} | {inspect.getfile(Future)}
STANDARD_LIBRARY = str(Path(traceback.__file__).parent)


class Miscounted(ValueError):
    """Raised if a reward returns more or fewer scores than there are completions."""


def scores_of(returned: Any, count: int) -> tuple[list[Score], dict[int, str]]:
    """Return the scores of `count` completions and, by row index, the errors of invalid entries.

    The score of an invalid entry is `None`.

    Args:
        returned: the result of the reward: an iterable of numbers and `None`.
        count: the number of completions.

    Raises:
        TypeError: if `returned` is not iterable, or is a string, bytes or a dict.
        Miscounted: if `returned` does not have `count` entries.
    """
    if returned is None or isinstance(returned, str | bytes | dict):
        raise TypeError(
            f"the reward returned {clipped(returned)} instead of one score per completion"
        )
    entries = list(returned)
    if len(entries) != count:
        raise Miscounted(
            f"the reward returned {counted(len(entries), 'score')} for "
            f"{counted(count, 'completion')}"
        )
    scores: list[Score] = []
    errors: dict[int, str] = {}
    for row, entry in enumerate(entries):
        try:
            scores.append(as_score(entry))
        except Exception as error:  # a foreign type's __float__ may raise anything
            scores.append(None)
            errors[row] = f"{type(error).__name__}: {error}"
    return scores, errors


def as_score(entry: Any) -> Score:
    """Convert one entry of a reward's result to a float; return `None` for `None`.

    Raises:
        TypeError: if `entry` is not a number.
        ValueError: if `entry` is infinite, NaN or beyond ±`LARGEST`.
        Exception: any error that the entry's own `__float__` raises.
    """
    if entry is None:
        return None
    if not hasattr(entry, "__float__") and not hasattr(entry, "__index__"):
        raise TypeError(f"the reward returned {clipped(entry)}, which is not a number")
    score = float(entry)
    if not math.isfinite(score):
        raise ValueError(f"the reward returned {score}, which is not finite")
    if abs(score) > LARGEST:
        raise ValueError(f"the reward returned {score}, beyond the limit of {LARGEST:g}")
    return score


def in_full(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Return the end of an error's traceback as a string of bounded length.

    The last line contains the error and its location in the user's code.

    Args:
        error: the exception.
        function: the user's function that was called. If the traceback has no frame of the user's
            code, as for a wrong return value, the location is the first line of this function.
    """
    if isinstance(error, TooLate):
        error.__context__ = None  # formatting the error that was being handled may have hung
    details = traceback.TracebackException.from_exception(error)
    num_error_lines = len(list(details.format_exception_only()))
    stack_text = "".join(list(details.format())[:-num_error_lines])
    message = " ".join(str(details).split())[:MAX_SHOWN]
    description = type(error).__name__
    if message:
        description += f": {message}"
    place = place_of(details.stack, function)
    return printable(f"{stack_text[-6 * MAX_SHOWN :]}{description}{place}".strip())


def place_of(stack: Iterable[traceback.FrameSummary], function: Callable[..., Any] | None) -> str:
    """Return an error's location in the user's code as ` (file:line, in name)`; "" if unknown.

    If `stack` has no frame of the user's code, return the location of `function`, or else the
    location in the first file outside this package's machinery.
    """
    frames = [frame for frame in stack if frame.filename not in MACHINERY]
    user_frames = frames_of_user(frames)
    has_code = function is not None and hasattr(inspect.unwrap(function), "__code__")
    if not user_frames and function is not None and has_code:
        code = inspect.unwrap(function).__code__
        return f" ({code.co_filename}:{code.co_firstlineno}, in {code.co_name})"
    shown_frames = user_frames or frames
    if shown_frames:
        file = shown_frames[0].filename
        frame = [frame for frame in shown_frames if frame.filename == file][-1]
        return f" ({file}:{frame.lineno}, in {frame.name})"
    return ""


def frames_of_user(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames that are in neither `MACHINERY` nor the standard library."""
    frames = []
    for frame in stack:
        if frame.filename not in MACHINERY and not in_standard_library(frame.filename):
            frames.append(frame)
    return frames


def is_of_user_code(error: BaseException) -> bool:
    """Return whether the user's own code raised an error, directly or in code that it called.

    If not, the call failed because of its arguments, or a check of its result failed.
    """
    return bool(frames_of_user(traceback.extract_tb(error.__traceback__)))


def in_standard_library(path: str) -> bool:
    """Return whether `path` is a source file of the standard library, for example of `asyncio`."""
    return path.startswith(STANDARD_LIBRARY) and "site-packages" not in path


def clipped(content: object) -> str:
    """Return the `repr` of an object, shortened to about `MAX_SHOWN` characters.

    If `repr` raises an exception, return a note that says so.
    """
    try:
        text = repr(content)
    except Exception as error:
        text = f"<{type(content).__name__} whose repr raises {type(error).__name__}>"
    if len(text) > MAX_SHOWN:
        text = f"{text[: MAX_SHOWN // 2]} ... {text[-MAX_SHOWN // 2 :]}"
    return printable(text)


class UserCodeFailure(RuntimeError):
    """Raised if a reward or environment fails too often. The message quotes one of the failures."""


@dataclass
class FailureCount:
    """Counts the failures of a reward or an environment, in total and in the most recent calls.

    Args:
        name: what fails, as the subject of messages, such as "Reward 'format'".
        unit: what is counted, in the plural, such as "rows".
        max_failure_rate: the maximum failure rate in the window; if it is exceeded, `too_many`
            reports a problem.
        rate_key: the recipe key for `max_failure_rate`, named in messages.
        window: the number of most recent calls to consider. `too_many` reports nothing until a
            quarter of the window is filled.

    Attributes:
        calls: the number of calls since the start.
        failed: how many of them failed.
        last_error: the last failure, which the caller must set.
    """

    name: str
    unit: str
    _: KW_ONLY
    max_failure_rate: float = 0.5
    rate_key: str = "max_failure_rate"
    window: int = 256

    def __post_init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.last_error = ""  # the last failure, with its traceback if there is one
        self._recent: deque[bool] = deque(maxlen=self.window)
        self._kinds: set[str] = set()

    def add(self, failures: Iterable[bool]) -> None:
        """Count one call for each entry of `failures`, which is `True` if the call failed."""
        outcomes = list(failures)
        self.calls += len(outcomes)
        self.failed += sum(outcomes)
        self._recent.extend(outcomes)

    def is_new_kind(self, error: str) -> bool:
        """Return whether this is the first error of its type, and remember the type.

        `error` is a string from `in_full`.
        """
        last_line = error.rpartition("\n")[2]
        kind = last_line.partition(":")[0]
        is_new = kind not in self._kinds
        self._kinds.add(kind)
        return is_new

    def too_many(self) -> str | None:
        """Return why the run must stop, or `None` if the failure rate is acceptable.

        Also return `None` until a quarter of the window is filled.
        """
        calls = len(self._recent)
        failed = sum(self._recent)
        if calls < max(1, self.window / 4) or failed / calls <= self.max_failure_rate:
            return None
        return (
            f"{self.name} failed on {failed} of the last {calls} {self.unit}; the allowed share is "
            f"{self.max_failure_rate:g}. Remove the cause, or raise `{self.rate_key}`. The last "
            f"failure: {self.last_error}"
        )
