"""One guard around every reward: what a function does wrong becomes None for its rows, counted, and told once.

Wrong are an exception, the wrong number of scores, inf, NaN, and what is no number. A batch that fails is scored again
row by row, so that only the rows at fault lose their score. A function that fails on too many rows stops the run.

Time is bounded by the pool, for async rewards by a loop of their own, for all others by a timer, which cannot interrupt C.
"""

import inspect
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

from grpo_ext.rewards.deadline import TooLate, deadline, in_time
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.scores import Miscounted, clipped, in_full, scores_of
from grpo_ext.rewards.signature import EXTRAS
from grpo_ext.rewards.undisturbed import one_process, undisturbed

logger = logging.getLogger(__name__)


class RewardFailure(RuntimeError):
    """A reward failed too often, or at all where `on_error="raise"`. The message ends with the last traceback."""


@dataclass(eq=False)
class Guard:
    """A reward that answers every row with a finite number or None."""

    reward: Callable  # what `build` returns, or any function with TRL's signature; an async one's is an `AsyncGuard`
    _: KW_ONLY
    on_error: Literal["none", "raise"] = "none"  # leave failed rows unscored, or stop at the first
    max_failure_rate: float = 0.5  # share of failed rows in the window above which `RewardFailure` is raised
    window: int = 256  # the last rows, that the share is taken over; below a quarter of them there is no judgement
    timeout: float | None = None  # seconds that a row may take, a batch that many times as long; `None`: any time
    pool: Any = None  # a `RewardPool`, used, with its own timeout, where the reward declares `needs_cpu`
    deferred: bool = False  # keep the `RewardFailure` in `failure`, so that no rank leaves a collective call alone

    def __post_init__(self) -> None:
        self.name = self.__name__ = reward_name(self.reward)
        self.columns = getattr(self.reward, "columns", ())
        self.rowwise = isinstance(self.reward, Reward) and self.reward.needs_cpu
        self.pool = self.pool if self.rowwise else None
        self.failure: RewardFailure | None = None
        self.failed = self.scored = 0  # rows, since the start
        self.lost: set[int] = set()  # the prompts, as numbers, whose rows have all failed since a row last did not
        self.last_error = ""  # what the last failure was, with its traceback where there is one
        self._recent: deque[bool] = deque(maxlen=self.window)
        self._told: set[str] = set()

    def __call__(self, /, **given: Any) -> list[Score]:
        """One score a completion; given are `completions` and what else TRL passes to a reward.

        `RewardFailure` as `on_error` and `max_failure_rate` say.
        """
        if self.pool is not None:
            scores, errors = self.pool.score(self.reward, given)
        else:
            with undisturbed(self.seed(given)):
                scores, errors = self.score_batch(given)
        return self.settle(scores, errors, given)

    def begin(self, **given: Any) -> None:
        """Start scoring rows that the guard will be called with, where the reward runs in worker processes."""
        if self.pool is not None:
            self.pool.begin(self.reward, given)

    def seed(self, given: dict[str, Any]) -> int:
        """Of what the reward draws: of step and completions, so that a resumed run draws the same."""
        step = getattr(given.get("trainer_state"), "global_step", 0)
        return number_of((self.name, step, given["completions"]))

    def score_batch(self, given: dict[str, Any]) -> tuple[list[Score], dict[int, str]]:
        """The scores and, by row, the errors. One call, or one a row where that fails."""
        count, miscounted = len(given["completions"]), False
        if count == 1 or not self.rowwise:
            try:
                with deadline(self.timeout and self.timeout * count), one_process():
                    try:
                        return scores_of(self.reward(**copied(given)), count)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:  # told within the deadline: its words may hang, too
                        why, miscounted = in_full(error), isinstance(error, Miscounted)
            except TooLate as error:
                why = in_full(error)
            if count == 1:
                return [None], {0: why}
        scores: list[Score] = []
        errors: dict[int, str] = {}
        for row in range(count):
            score, wrong = self.score_batch(one_row(given, row, count))
            scores += score
            errors |= dict.fromkeys([row], wrong[0]) if wrong else {}
        if miscounted and not errors:  # no row is at fault alone: it takes one completion for all, or one for many
            return [None] * count, dict.fromkeys(range(count), why)
        return scores, errors

    def settle(self, scores: list[Score], errors: dict[int, str], given: dict[str, Any]) -> list[Score]:
        """The scores; what failed is counted, told and judged."""
        self.scored += len(scores)
        self.failed += len(errors)
        self._recent.extend(row in errors for row in range(len(scores)))
        for row, error in sorted(errors.items()):
            self.last_error = error
            self.tell(error, given, row)
        if len(errors) < len(scores):
            self.lost.clear()
        elif self.max_failure_rate < 1:
            self.lost.update(map(number_of, given.get("prompts") or ()))
        recent, failed = len(self._recent), sum(self._recent)
        if recent >= max(1, self.window / 4) and failed / recent > self.max_failure_rate:
            self.fail(
                f"Reward {self.name!r} failed on {failed} of the last {recent} rows, more than "
                f"the share of {self.max_failure_rate:g} that is allowed. The last failure: {self.last_error}"
            )
        return scores

    def tell(self, error: str, given: dict[str, Any], row: int) -> None:
        """Log a failure with its row, once for each kind; raise where that is wanted."""
        kind = error.rpartition("\n")[2].partition(":")[0]
        if kind in self._told and self.on_error == "none":
            return
        self._told.add(kind)
        whole = one_row(given, row, len(given["completions"]))
        shown = clipped({key: value for key, value in whole.items() if key not in EXTRAS})
        if self.on_error == "raise":
            self.fail(f"Reward {self.name!r} failed on {shown}: {error}")
            return
        logger.warning(
            f"Reward {self.name!r} failed on a row, which stays unscored. From now on failures like this one are only "
            f"counted. The row: {shown}. The failure: {error}"
        )

    def fail(self, words: str) -> None:
        self.failure = self.failure or RewardFailure(words)
        if not self.deferred:
            raise self.failure


class AsyncGuard(Guard):
    """The guard of an async function, which TRL awaits together with the others. A batch fails as a whole."""

    async def __call__(self, /, **given: Any) -> list[Score]:  # type: ignore[override]  # TRL awaits it
        count = len(given["completions"])

        async def answer() -> tuple[list[Score], dict[int, str]]:
            with one_process():
                try:
                    return scores_of(await self.reward(**copied(given)), count)
                except BaseException as error:  # a reward's own CancelledError must not reach TRL
                    return [None] * count, dict.fromkeys(range(count), in_full(error))

        try:
            with undisturbed(self.seed(given)):
                scores, errors = await in_time(answer(), self.timeout and self.timeout * count)
        except TimeoutError as error:
            scores, errors = [None] * count, dict.fromkeys(range(count), in_full(error))
        return self.settle(scores, errors, given)


def guard_rewards(rewards: Sequence[Any], *, workers: int = 0, timeout: float | None = None, **options: Any) -> list[Any]:
    """A guard around each function, with these options; reward models, their ids and guards stay as they are.

    `workers` are processes for the rewards that need much CPU time, each row with the `timeout`. 0: none.
    """
    pool = RewardPool(workers, timeout=timeout or math.inf) if workers else None
    return [
        (AsyncGuard if is_async(reward) else Guard)(reward, timeout=timeout, pool=pool, **options)
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


def copied(value: Any) -> Any:
    """Lists and mappings anew, with the same things in them, so that a reward can change its arguments alone."""
    if isinstance(value, list):
        return [copied(item) if isinstance(item, list | dict) else item for item in value]
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def number_of(value: Any) -> int:
    """32 bits that stand for a value's `repr`, the same in every process."""
    return zlib.crc32(repr(value).encode("utf-8", "replace"))


def one_row(given: dict[str, Any], row: int, count: int) -> dict[str, Any]:
    """The arguments for one completion. It logs nothing: the batch that failed may have logged already."""

    def own(key: str, value: Any) -> Any:
        if key in ("log_extra", "log_metric"):
            return lambda *_: None
        return [value[row]] if isinstance(value, list | tuple) and len(value) == count else value

    return {key: own(key, value) for key, value in given.items()}
