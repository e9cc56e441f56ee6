"""One guard around every reward: what a function does wrong becomes None for its rows, counted, and told once.

Wrong are an exception, the wrong number of scores, inf, NaN, and what is no number. A batch that fails is scored again
row by row, so that only the rows at fault lose their score. A function that fails on too many rows stops the run.

Time can be bounded, too: for rewards in worker processes by the pool, for async ones by their loop, for all others, in the
main thread, by a timer that interrupts Python code. It cannot interrupt a long computation in C: that takes a worker process.
"""

import inspect
import logging
import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from grpo_ext.rewards.deadline import TooLate, deadline
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.signature import EXTRAS

logger = logging.getLogger(__name__)

OnError = Literal["none", "raise"]
SHOWN = 500  # characters of a row that a log line shows


class RewardFailure(RuntimeError):
    """A reward failed too often, or at all where `on_error="raise"`. The message ends with the last traceback."""


class Guard:
    """A reward that answers every row with a finite number or None.

    Args:
        reward: what `build` returns, or any function with TRL's signature. For an async one make an `AsyncGuard`.
        name: of its metric. `None`: the reward's own.
        on_error: "none" leaves failed rows unscored; "raise" stops at the first.
        max_failure_rate: share of failed rows, over the last `window`, above which `RewardFailure` is raised.
        window: how many rows the share is taken over. With less than a quarter of them there is no judgement.
        timeout: seconds that a row may take, a batch that many times as long. `None`: any time.
        pool: a `RewardPool`, used, with its own timeout, where the reward declares `needs_cpu`.

    Attributes:
        failed, scored (`int`): rows that failed, and rows seen, since the start.
        last_error (`str`): what the last failure was, with its traceback where there is one.
    """

    def __init__(
        self,
        reward: Callable,
        *,
        name: str | None = None,
        on_error: OnError = "none",
        max_failure_rate: float = 0.5,
        window: int = 256,
        timeout: float | None = None,
        pool: Any = None,
    ):
        self.reward = reward
        self.name = self.__name__ = name or reward_name(reward)
        self.columns = getattr(reward, "columns", ())
        self.on_error = on_error
        self.max_failure_rate = max_failure_rate
        self.timeout = timeout
        self.rowwise = isinstance(reward, Reward) and reward.needs_cpu
        self.pool = pool if self.rowwise else None
        self.failed = self.scored = 0
        self.last_error = ""
        self.window = window
        self._recent: deque[bool] = deque(maxlen=window)
        self._told: set[str] = set()

    @property
    def failure_rate(self) -> float:
        """Share of failed rows among the last `window`."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def __call__(
        self, /, prompts: Any = None, completions: Sequence = (), completion_ids: Any = None, **columns: Any
    ) -> list[Score]:
        """One score a completion; the arguments are those that TRL passes to a reward.

        Raises:
            RewardFailure: as `on_error` and `max_failure_rate` say.
        """
        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        if self.pool is not None:
            answers, errors = self.pool.score(self.reward, given)
        else:
            answers, errors = self.score_batch(given)
        return self.settle(answers, errors, given)

    def begin(self, **given: Any) -> None:
        """Start scoring rows that the guard will be called with, where the reward runs in worker processes."""
        if self.pool is not None:
            self.pool.begin(self.reward, given)

    def score_batch(self, given: dict[str, Any]) -> tuple[list[Any], dict[int, str]]:
        """The function's answers and, by row, its errors. One call, or one a row where that fails."""
        count = len(given["completions"])
        if count == 1 or not self.rowwise:
            try:
                with deadline(self.timeout and self.timeout * count):
                    return checked_length(self.reward(**given), count), {}
            except (Exception, SystemExit, TooLate) as error:
                if count == 1:
                    return [None], {0: in_full(error)}
        answers: list[Any] = []
        errors: dict[int, str] = {}
        for row in range(count):
            answer, wrong = self.score_batch(one_row(given, row, count))
            answers += answer
            errors |= dict.fromkeys([row], wrong[0]) if wrong else {}
        return answers, errors

    def settle(self, answers: list[Any], errors: dict[int, str], given: dict[str, Any]) -> list[Score]:
        """The answers as scores; what failed is counted, told and judged."""
        scores: list[Score] = []
        for row, answer in enumerate(answers):
            score, error = None, errors.get(row)
            if error is None:
                try:
                    score = as_score(answer)
                except Exception as reason:  # whatever a foreign type's __float__ raises
                    error = f"{type(reason).__name__}: {reason}"
            scores.append(score)
            self._recent.append(error is not None)
            self.scored += 1
            if error is not None:
                self.failed += 1
                self.last_error = error
                self.tell(error, given, row)
        enough = len(self._recent) >= self.window / 4
        if enough and self.failure_rate > self.max_failure_rate:
            raise RewardFailure(
                f"Reward {self.name!r} failed on {sum(self._recent)} of the last {len(self._recent)} rows, more than "
                f"the share of {self.max_failure_rate:g} that is allowed. The last failure: {self.last_error}"
            )
        return scores

    def tell(self, error: str, given: dict[str, Any], row: int) -> None:
        """Log a failure with its row, once for each kind; raise where that is wanted."""
        whole = one_row(given, row, len(given["completions"]))
        shown = {key: value for key, value in whole.items() if key not in EXTRAS}
        if self.on_error == "raise":
            raise RewardFailure(f"Reward {self.name!r} failed on {clipped(shown)}: {error}")
        kind = error.strip().rpartition("\n")[2].partition(":")[0]
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                f"Reward {self.name!r} failed on a row, which stays unscored. From now on failures like this one are only "
                f"counted. The row: {clipped(shown)}. The failure: {error}"
            )


class AsyncGuard(Guard):
    """The guard of an async function, which TRL awaits together with the others. A batch fails as a whole."""

    async def __call__(  # type: ignore[override]  # a Guard whose answer TRL awaits
        self, /, prompts: Any = None, completions: Sequence = (), completion_ids: Any = None, **columns: Any
    ) -> list[Score]:
        import asyncio

        given = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        count = len(completions)
        try:
            answer = asyncio.wait_for(self.reward(**given), self.timeout and self.timeout * count)
            answers, errors = checked_length(await answer, count), {}
        except (Exception, SystemExit) as error:
            answers, errors = [None] * count, dict.fromkeys(range(count), in_full(error))
        return self.settle(answers, errors, given)


def guard_rewards(rewards: Sequence[Any], **options: Any) -> list[Any]:
    """A guard around each function; reward models, their ids and guards stay as they are. `options` as in `Guard`."""
    return [
        (AsyncGuard if is_async(reward) else Guard)(reward, **options)
        if callable(reward) and not isinstance(reward, Guard) and not hasattr(reward, "parameters")
        else reward
        for reward in rewards
    ]


def is_async(function: Callable) -> bool:
    """Whether calling it gives something to await; the same forms as TRL knows."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def reward_name(reward: Callable) -> str:
    """The name under which a reward's metric goes."""
    if name := getattr(reward, "__name__", None):
        return name
    return reward_name(reward.func) if isinstance(reward, partial) else type(reward).__name__


def as_score(answer: Any) -> Score:
    """A finite float or None; an error for anything else."""
    if answer is None:
        return None
    if not hasattr(answer, "__float__") and not hasattr(answer, "__index__"):
        raise TypeError(f"it returned {clipped(answer)}, which is no number")
    score = float(answer)
    if not math.isfinite(score):
        raise ValueError(f"it returned {score}")
    return score


def checked_length(answers: Any, count: int) -> list[Any]:
    """The answers as a list of `count`; `TypeError` or `ValueError` if they are none."""
    if answers is None or isinstance(answers, str | bytes | dict):
        raise TypeError(f"it returned {clipped(answers)} and not a list of {count} scores")
    answers = list(answers)
    if len(answers) != count:
        raise ValueError(f"it returned {len(answers)} scores for {count} completions")
    return answers


def one_row(given: dict[str, Any], row: int, count: int) -> dict[str, Any]:
    """The arguments for one completion. It logs nothing: the batch that failed may have logged already."""

    def ignore(*_: Any) -> None:
        pass

    return {
        key: ignore
        if key in ("log_extra", "log_metric")
        else [value[row]]
        if isinstance(value, list | tuple) and len(value) == count
        else value
        for key, value in given.items()
    }


def in_full(error: BaseException) -> str:
    """An error with the end of its traceback."""
    return "".join(traceback.format_exception(error))[-8 * SHOWN :].strip()


def clipped(value: Any) -> str:
    """`repr`, of bounded length and without its own failures."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} ... {text[-SHOWN // 2 :]}"
