"""A guard around every reward. Rows on which the function fails get None, and the guard counts and logs the failures.

A failure is an exception, a wrong number of scores, inf, NaN, or a value that is not a number. A batch that fails is scored
again row by row, so that only the faulty rows lose their score. A function that fails on too many rows stops the run.

None for a row is no failure: the reward declines the row. A reward with an attribute `tasks` sees only the rows of these tasks,
by the column "task", and declines all others.

The pool bounds the time of CPU-heavy rewards, a separate event loop that of async rewards, and a timer, which cannot interrupt
C code, that of all others.
"""

import logging
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

from grpo_ext.rewards.deadline import TooLate, deadline, in_time
from grpo_ext.rewards.failures import FailureCount, UserCodeFailure
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.process_state import exit_if_forked, preserve_process_state
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.scores import Miscounted, clipped, in_full, scores_of
from grpo_ext.rewards.signature import EXTRAS, is_async
from grpo_ext.rewards.task_rows import own_rows, rows_of, spread

logger = logging.getLogger(__name__)


class RewardFailure(UserCodeFailure):
    """A reward failed too often, or once with `on_error="raise"`. The message ends with the last traceback."""


@dataclass(eq=False)
class Guard:
    """A reward that answers every row with a finite number or None."""

    reward: Callable  # a registered reward, or any function with TRL's signature; `AsyncGuard` takes async functions
    _: KW_ONLY
    on_error: Literal["none", "raise"] = (
        "none"  # leave failed rows unscored, or stop at the first one
    )
    max_failure_rate: float = (
        0.5  # share of failed rows in the window above which `RewardFailure` is raised
    )
    # number of last rows that count for the share, without declined ones; a quarter of them is the least that is judged
    window: int = 256
    timeout: float | None = (
        None  # seconds that a row may take; a batch of n rows may take n times as long. `None`: no limit
    )
    pool: Any = None  # a `RewardPool` with its own timeout, used if the reward declares `needs_cpu`
    label: str | None = None  # the name of its metric; `None`: that of the reward
    deferred: bool = False  # keep the `RewardFailure` in `failure` instead of raising it, so that all ranks can stop together

    def __post_init__(self) -> None:
        self.name = self.__name__ = self.label or reward_name(self.reward)
        self.columns = getattr(self.reward, "columns", ())
        self.tasks: tuple[str, ...] | None = getattr(self.reward, "tasks", None)
        self.rowwise = isinstance(self.reward, Reward) and self.reward.needs_cpu
        self.pool = self.pool if self.rowwise else None
        self.failure: RewardFailure | None = None
        self.last_scores: list[Score] = []  # of the last batch
        self.last_failed: set[int] = set()  # the rows of the last call on which it failed
        self.lost: set[int] = (
            set()
        )  # the prompts, by `number_of`, of the batches that have failed since the last score
        self.count = FailureCount(
            f"Reward {self.name!r}",
            "rows",
            max_failure_rate=self.max_failure_rate,
            window=self.window,
        )

    @property
    def failed(self) -> int:
        """Number of rows without a score because of a failure, since the start."""
        return self.count.failed

    @property
    def asked(self) -> int:
        """Number of rows that it scored or failed on, since the start."""
        return self.count.calls

    @property
    def last_error(self) -> str:
        """The last failure, with its traceback if there is one."""
        return self.count.last_error

    def __call__(self, /, **given: Any) -> list[Score]:
        """Return one score for each completion; `given` are `completions` and the other arguments that TRL passes.

        `RewardFailure` as `on_error` and `max_failure_rate` say.
        """
        rows, own = own_rows(given, self.tasks)
        if not rows:
            return self.spread_scores([], {}, rows, given)
        scores, errors = self.scores_and_errors(own)
        return self.spread_scores(self.settle(scores, errors, own), errors, rows, given)

    def spread_scores(
        self, scores: list[Score], errors: dict[int, str], rows: list[int], given: dict[str, Any]
    ) -> list[Score]:
        """Keep and return the scores of a whole batch; its other rows than `rows` are declined."""
        self.last_failed = {rows[row] for row in errors}
        self.last_scores = spread(scores, rows, len(given["completions"]))
        return self.last_scores

    def try_out(self, /, **given: Any) -> list[Score]:
        """Return one score for each completion under the same limits, without counting or logging failures."""
        rows, own = own_rows(given, self.tasks)
        scores = self.scores_and_errors(own)[0] if rows else []
        return spread(scores, rows, len(given["completions"]))

    def scores_and_errors(self, given: dict[str, Any]) -> tuple[list[Score], dict[int, str]]:
        """Return the scores and, by row, the errors; from the worker processes if the reward runs there."""
        if self.pool is not None:
            return self.pool.score(self.reward, given)
        with preserve_process_state(self.seed(given)):
            return self.score_batch(given)

    def begin(self, **given: Any) -> None:
        """Start to score the rows of a later call, if the reward runs in worker processes."""
        if self.pool is not None:
            rows, own = own_rows(given, self.tasks)
            if rows:
                self.pool.begin(self.reward, own)

    def seed(self, given: dict[str, Any]) -> int:
        """Return the seed of the reward's random numbers. It depends on step and completions, so a resumed run repeats it."""
        step = getattr(given.get("trainer_state"), "global_step", 0)
        return number_of((self.name, step, given["completions"]))

    def score_batch(self, given: dict[str, Any]) -> tuple[list[Score], dict[int, str]]:
        """Return the scores and, by row, the errors. One call for all rows, or one for each row if that fails."""
        count, miscounted = len(given["completions"]), False
        if count == 1 or not self.rowwise:
            try:
                with deadline(self.timeout and self.timeout * count), exit_if_forked():
                    try:
                        return scores_of(self.reward(**copied(given)), count)
                    except KeyboardInterrupt:
                        raise
                    except (
                        BaseException
                    ) as error:  # inside the deadline, since its message may hang as well
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
            if wrong:
                errors[row] = wrong[0]
        if (
            miscounted and not errors
        ):  # every single row is right, so no score of the batch can be trusted
            return [None] * count, dict.fromkeys(range(count), why)
        return scores, errors

    def settle(
        self, scores: list[Score], errors: dict[int, str], given: dict[str, Any]
    ) -> list[Score]:
        """Count and log the failures, raise if there are too many, and return the scores."""
        declined = {row for row, score in enumerate(scores) if score is None and row not in errors}
        self.count.add(row in errors for row in range(len(scores)) if row not in declined)
        for row, error in sorted(errors.items()):
            self.count.last_error = error
            self.log(error, given, row)
        if len(errors) + len(declined) < len(scores):
            self.lost.clear()
        elif self.max_failure_rate < 1 and (prompts := given.get("prompts")):
            self.lost.update(number_of(prompts[row]) for row in errors)
        why = self.count.too_many()
        if why is not None:
            self.fail(why)
        return scores

    def log(self, error: str, given: dict[str, Any], row: int) -> None:
        """Log a failure with its row, once for each kind; raise if `on_error` says so."""
        if not self.count.is_new_kind(error) and self.on_error == "none":
            return
        whole = one_row(given, row, len(given["completions"]))
        shown = clipped({key: value for key, value in whole.items() if key not in EXTRAS})
        if self.on_error == "raise":
            self.fail(f"Reward {self.name!r} failed on {shown}: {error}")
        else:
            logger.warning(
                f"Reward {self.name!r} failed on a row, which stays unscored. From now on failures like this one are only "
                f"counted. The row: {shown}. The failure: {error}"
            )

    def fail(self, words: str) -> None:
        self.failure = self.failure or RewardFailure(words)
        if not self.deferred:
            raise self.failure


class AsyncGuard(Guard):
    """The guard of an async function. TRL awaits all of them together. A batch fails as a whole."""

    async def __call__(self, /, **given: Any) -> list[Score]:  # type: ignore[override]  # TRL awaits it
        rows, own = own_rows(given, self.tasks)
        count = len(rows)
        if not rows:
            return self.spread_scores([], {}, rows, given)

        async def answer() -> tuple[list[Score], dict[int, str]]:
            with exit_if_forked():
                try:
                    return scores_of(await self.reward(**copied(own)), count)
                except BaseException as error:  # a reward's own CancelledError must not reach TRL
                    return [None] * count, dict.fromkeys(range(count), in_full(error))

        try:
            with preserve_process_state(self.seed(own)):
                scores, errors = await in_time(answer(), self.timeout and self.timeout * count)
        except TooLate as error:
            scores, errors = [None] * count, dict.fromkeys(range(count), in_full(error))
        return self.spread_scores(self.settle(scores, errors, own), errors, rows, given)


def guard_rewards(
    rewards: Sequence[Any],
    *,
    labels: Sequence[str | None] | None = None,
    workers: int = 0,
    timeout: float | None = None,
    **options: Any,
) -> list[Any]:
    """Put a guard with these options around each function. Reward models, their ids and guards stay unchanged.

    `labels` are the names of their metrics, by default those of the rewards. `workers` is the number of processes for
    CPU-heavy rewards, 0 for none; a row there may take `timeout` seconds.
    """
    pool = RewardPool(workers, timeout=timeout or math.inf) if workers else None
    guarded = []
    for reward, label in zip(rewards, labels or [None] * len(rewards), strict=True):
        if takes_guard(reward):
            kind = AsyncGuard if is_async(reward) else Guard
            reward = kind(reward, label=label, timeout=timeout, pool=pool, **options)
        guarded.append(reward)
    return guarded


def takes_guard(reward: Any) -> bool:
    """Whether a reward is a function without a guard, and no reward model or the id of one."""
    return callable(reward) and not isinstance(reward, Guard) and not hasattr(reward, "parameters")


def reward_name(reward: Callable) -> str:
    """Return the name of a reward's metric."""
    if name := getattr(reward, "__name__", None):
        return name
    return reward_name(reward.func) if isinstance(reward, partial) else type(reward).__name__


def copied(value: Any) -> Any:
    """Copy lists and mappings, but not their items, so that a reward can change only its own arguments."""
    if isinstance(value, list):
        return [copied(item) if isinstance(item, list | dict) else item for item in value]
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def number_of(value: Any) -> int:
    """Return a 32-bit checksum of a value's `repr`, the same in every process."""
    return zlib.crc32(repr(value).encode("utf-8", "replace"))


def one_row(given: dict[str, Any], row: int, count: int) -> dict[str, Any]:
    """Return the arguments for one completion, with loggers that do nothing: the batch may have logged before it failed."""
    own = rows_of(given, [row], count)
    return own | {key: lambda *_: None for key in ("log_extra", "log_metric") if key in given}
