"""Guards around rewards: a failing row scores `None`, and failures are counted and logged.

A failure is an exception, a wrong number of scores, inf, NaN, a score beyond `scores.LARGEST`, or a
value that is not a number. If the call for a whole batch fails, each row is scored separately, so
that only the faulty rows go unscored; if the reward is async, the whole batch goes unscored. A
reward that fails on too many rows stops the run.

Returning `None` for a row is not a failure: the reward declines the row. A reward with an attribute
`tasks` is called only for the rows of those tasks (by the column `task`) and declines all others.

The time limit of a reward is enforced by the worker pool if the reward is CPU-heavy and there is a
pool, in a separate event loop if the reward is async, and otherwise by a timer, which cannot
interrupt C code.
"""

import logging
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

from grpo_ext.common.user_code import TooLate, deadline, exit_if_forked, preserve_process_state
from grpo_ext.rewards.batch_rows import copy_containers, one_row, rows_to_score, scatter
from grpo_ext.rewards.deadline import in_time
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.scores import (
    FailureCount,
    Miscounted,
    UserCodeFailure,
    clipped,
    in_full,
    scores_of,
)
from grpo_ext.rewards.signature import EXTRAS, is_async

logger = logging.getLogger(__name__)


class RewardFailure(UserCodeFailure):
    """Raised if a reward fails too often, or if it fails at all and `max_failure_rate` is 0.

    The message ends with one of the failures.
    """


@dataclass(eq=False)
class Guard:
    """Callable that wraps a reward and returns a finite number or `None` for each row.

    Args:
        reward: a registered reward, or any function with TRL's signature. Use `AsyncGuard` for
            async functions.
        max_failure_rate: the share of failed rows in the window above which `RewardFailure` is
            raised; 0 raises it at the first failure.
        window: the number of most recent rows over which the share is computed, not counting
            declined ones. The share is not checked until a quarter of the window is filled.
        timeout: the time limit per row, in seconds; the limit for a batch of n rows is n times as
            long. `None` means no limit.
        pool: worker processes with their own timeout, used if the reward is registered with
            `needs_cpu`.
        label: the name of the metric; if `None`, the reward's own name.
        deferred: whether to store the `RewardFailure` in `failure` instead of raising it, so that
            all ranks can stop together.
    """

    reward: Callable
    _: KW_ONLY
    max_failure_rate: float = 0.5
    window: int = 256
    timeout: float | None = None
    pool: RewardPool | None = None
    label: str | None = None
    deferred: bool = False

    def __post_init__(self) -> None:
        self.name = self.__name__ = self.label or reward_name(self.reward)
        self.columns = getattr(self.reward, "columns", ())
        self.tasks: tuple[str, ...] | None = getattr(self.reward, "tasks", None)
        self.rowwise = isinstance(self.reward, Reward) and self.reward.needs_cpu
        if not self.rowwise:
            self.pool = None
        #: indices of rows in the batch for which the reward is not called, because the environment
        #: of their episode failed
        self.left_out: frozenset[int] = frozenset()
        self.failure: RewardFailure | None = None
        self.last_scores: list[Score] = []  # the scores of the last batch
        self.last_failed: set[int] = set()  # rows of the last batch for which the reward failed
        # checksums of the prompts on which the reward has failed since it last scored any row
        self.lost_prompts: set[int] = set()
        self.count = FailureCount(
            f"Reward {self.name!r}",
            "rows",
            max_failure_rate=self.max_failure_rate,
            rate_key="reward_max_failure_rate",
            window=self.window,
        )

    @property
    def failed(self) -> int:
        """The number of rows on which the reward has failed since the guard was created."""
        return self.count.failed

    @property
    def asked(self) -> int:
        """The number of rows on which the reward has been called since the guard was created.

        Rows that the reward declined do not count.
        """
        return self.count.calls

    @property
    def last_error(self) -> str:
        """The last failure, with its traceback if there is one; "" if nothing has failed yet."""
        return self.count.last_error

    def __call__(self, /, **arguments: Any) -> list[Score]:
        """Return each completion's score; `None` if its row fails, is declined or is in `left_out`.

        Args:
            arguments: `completions` and the other arguments that TRL passes to rewards.

        Raises:
            RewardFailure: if too many rows have failed (see `max_failure_rate`) and the guard is
                not `deferred`.
        """
        rows, row_arguments = self.rows_to_score(arguments)
        if not rows:
            return self.record([], {}, rows, arguments)
        scores, errors = self.scores_and_errors(row_arguments)
        self.report_failures(scores, errors, row_arguments)
        return self.record(scores, errors, rows, arguments)

    def rows_to_score(self, arguments: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        """Return the indices of the rows to score, and the reward's arguments for these rows."""
        return rows_to_score(arguments, self.tasks, self.left_out)

    def record(
        self,
        scores: list[Score],
        errors: dict[int, str],
        rows: list[int],
        arguments: dict[str, Any],
    ) -> list[Score]:
        """Store and return the scores of a whole batch, with `None` for the rows not in `rows`.

        The scores are stored in `last_scores`, and the indices of the rows with errors in
        `last_failed`.

        Args:
            scores: one score for each of `rows`.
            errors: error messages by index into `rows`.
            rows: the batch indices of the rows that were scored.
            arguments: the arguments of the whole batch.
        """
        self.last_failed = {rows[index] for index in errors}
        self.last_scores = scatter(scores, rows, len(arguments["completions"]))
        return self.last_scores

    def try_out(self, /, **arguments: Any) -> list[Score]:
        """Score completions within the usual time limits, without counting or logging failures.

        The score is `None` for each row that fails, is declined, or is in `left_out`. An
        `AsyncGuard` does not support this method: all scores would be `None`.

        Args:
            arguments: `completions` and the other arguments that TRL passes to rewards.
        """
        rows, row_arguments = self.rows_to_score(arguments)
        scores: list[Score] = []
        if rows:
            scores, _ = self.scores_and_errors(row_arguments)
        return scatter(scores, rows, len(arguments["completions"]))

    def scores_and_errors(self, arguments: dict[str, Any]) -> tuple[list[Score], dict[int, str]]:
        """Score all rows, in the pool if there is one; return scores, and error messages by row."""
        if self.pool is not None and isinstance(self.reward, Reward):
            return self.pool.score(self.reward, arguments)
        with preserve_process_state(self.seed(arguments)):
            return self.score_batch(arguments)

    def begin(self, **arguments: Any) -> None:
        """Start scoring rows in the pool, so that a later call with the same arguments is faster.

        Do nothing if the reward does not use the pool.

        Args:
            arguments: the arguments of the later call.
        """
        if self.pool is None or not isinstance(self.reward, Reward):
            return
        rows, row_arguments = self.rows_to_score(arguments)
        if rows:
            self.pool.begin(self.reward, row_arguments)

    def seed(self, arguments: dict[str, Any]) -> int:
        """Return a seed for the reward's random numbers.

        It depends on the reward's name, the step and the completions, so that a resumed run draws
        the same numbers.
        """
        step = getattr(arguments.get("trainer_state"), "global_step", 0)
        return checksum((self.name, step, arguments["completions"]))

    def score_batch(self, arguments: dict[str, Any]) -> tuple[list[Score], dict[int, str]]:
        """Return the scores, and the error messages by row.

        Call the reward once for all rows. If that fails, or if the reward is registered with
        `needs_cpu`, call it once per row instead. If the call for all rows returned a wrong number
        of scores although each row succeeds on its own, all rows fail.
        """
        count = len(arguments["completions"])
        error_text = ""
        is_miscounted = False
        if count == 1 or not self.rowwise:
            try:
                with deadline(self.batch_timeout(count)), exit_if_forked():
                    try:
                        return scores_of(self.reward(**copy_containers(arguments)), count)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:
                        # Formatted inside the deadline, since the error's message may hang as well.
                        error_text = in_full(error)
                        is_miscounted = isinstance(error, Miscounted)
            except TooLate as error:
                error_text = in_full(error)
            if count == 1:
                return [None], {0: error_text}
        scores: list[Score] = []
        errors: dict[int, str] = {}
        for row in range(count):
            row_scores, row_errors = self.score_batch(one_row(arguments, row, count))
            scores += row_scores
            if row_errors:
                errors[row] = row_errors[0]
        if is_miscounted and not errors:
            # Every row succeeds on its own, so the reward mixes up rows: trust none of the scores.
            return failed_batch(count, error_text)
        return scores, errors

    def batch_timeout(self, count: int) -> float | None:
        """Return the time limit for a batch of `count` rows, in seconds; `None` for no limit."""
        return None if self.timeout is None else self.timeout * count

    def report_failures(
        self, scores: list[Score], errors: dict[int, str], arguments: dict[str, Any]
    ) -> None:
        """Count and log the failures of a batch, and call `fail` if there have been too many.

        Also update `lost_prompts`: clear it if any row was scored, and otherwise add checksums of
        the failed rows' prompts (nothing is added if `max_failure_rate` is 1).

        Args:
            scores: the score of each row that was to be scored.
            errors: the error messages by row.
            arguments: the reward's arguments for these rows.
        """
        declined = {row for row, score in enumerate(scores) if score is None and row not in errors}
        self.count.add(row in errors for row in range(len(scores)) if row not in declined)
        for row, error in sorted(errors.items()):
            self.count.last_error = error
            self.report_failure(error, arguments, row)
        prompts = arguments.get("prompts")
        if len(errors) + len(declined) < len(scores):
            self.lost_prompts.clear()
        elif self.max_failure_rate < 1 and prompts:
            # the run stops once no rank gets any scores (see `Judge.count_failures`)
            self.lost_prompts.update(checksum(prompts[row]) for row in errors)
        reason = self.count.too_many()
        if reason is not None:
            self.fail(reason)

    def report_failure(self, error: str, arguments: dict[str, Any], row: int) -> None:
        """Log the first failure of each kind; with `max_failure_rate=0`, call `fail` instead.

        Args:
            error: the error message.
            arguments: the reward's arguments for all rows that were to be scored.
            row: the index of the row that failed.
        """
        if not self.count.is_new_kind(error) and self.max_failure_rate > 0:
            return
        columns = one_row(arguments, row, len(arguments["completions"]))
        for name in EXTRAS:
            columns.pop(name, None)
        shown = clipped(columns)
        if self.max_failure_rate == 0:
            self.fail(
                f"Reward {self.name!r} failed on a row, which `reward_max_failure_rate: 0` does "
                "not allow. Correct the reward, or set a higher rate to leave such rows unscored. "
                f"The row: {shown}. The failure: {error}"
            )
        else:
            logger.warning(
                f"Reward {self.name!r} failed on a row, which is not scored. Further failures of "
                f"this kind are counted, but not logged. The row: {shown}. The failure: {error}"
            )

    def fail(self, message: str) -> None:
        """Store a failure if none is stored yet, and raise the stored one unless `deferred`."""
        if self.failure is None:
            self.failure = RewardFailure(message)
        if not self.deferred:
            raise self.failure


class AsyncGuard(Guard):
    """A guard for an async reward; if its call fails or times out, all rows of the batch fail.

    If only some of the returned scores are invalid, only their rows fail.
    """

    # Async, since TRL awaits the async rewards of a batch together.
    async def __call__(self, /, **arguments: Any) -> list[Score]:  # type: ignore[override]
        rows, row_arguments = self.rows_to_score(arguments)
        count = len(rows)
        if not rows:
            return self.record([], {}, rows, arguments)

        async def score_rows() -> tuple[list[Score], dict[int, str]]:
            with exit_if_forked():
                try:
                    return scores_of(await self.reward(**copy_containers(row_arguments)), count)
                except BaseException as error:  # a reward's own CancelledError must not reach TRL
                    return failed_batch(count, in_full(error))

        try:
            with preserve_process_state(self.seed(row_arguments)):
                scores, errors = await in_time(score_rows(), self.batch_timeout(count))
        except TooLate as error:
            scores, errors = failed_batch(count, in_full(error))
        self.report_failures(scores, errors, row_arguments)
        return self.record(scores, errors, rows, arguments)


def guard_rewards(
    rewards: Sequence[Any],
    *,
    labels: Sequence[str | None] | None = None,
    workers: int = 0,
    timeout: float | None = None,
    **options: Any,
) -> list[Any]:
    """Return the rewards, with a guard around each function.

    Reward models, their ids and guards are returned unchanged.

    Args:
        rewards: functions, reward models, ids of reward models, or guards.
        labels: the metric name of each reward, in the same order. If `labels` or an entry is
            `None`, the reward's own name is used.
        workers: the number of worker processes for CPU-heavy rewards; 0 scores them in this
            process.
        timeout: the time limit per row, in seconds, both in this process and in workers; `None`
            means no limit.
        options: further arguments for `Guard`.
    """
    pool = RewardPool(workers, timeout=timeout or math.inf) if workers else None
    guarded = []
    for reward, label in zip(rewards, labels or [None] * len(rewards), strict=True):
        if takes_guard(reward):
            guard_class = AsyncGuard if is_async(reward) else Guard
            reward = guard_class(reward, label=label, timeout=timeout, pool=pool, **options)
        guarded.append(reward)
    return guarded


def unguarded(reward: object) -> Any:
    """Return the reward inside a guard; return any other reward unchanged."""
    return reward.reward if isinstance(reward, Guard) else reward


def takes_guard(reward: object) -> bool:
    """Return whether a reward is an unguarded function, not a reward model or its id."""
    return callable(reward) and not isinstance(reward, Guard) and not is_reward_model(reward)


def is_reward_model(reward: object) -> bool:
    """Return whether a reward is a loaded model, or a model's id or folder, and not a function."""
    return isinstance(reward, str) or hasattr(reward, "parameters")


def reward_name(reward: Callable) -> str:
    """Return a reward's `__name__` or, if it has none, the name of its class.

    A `partial` without a `__name__` has the name of the function that it wraps.
    """
    name = getattr(reward, "__name__", None)
    if name:
        return name
    if isinstance(reward, partial):
        return reward_name(reward.func)
    return type(reward).__name__


def failed_batch(count: int, error: str) -> tuple[list[Score], dict[int, str]]:
    """Return the scores and errors of a failed batch: `None` and `error` for each of its rows."""
    return [None] * count, dict.fromkeys(range(count), error)


def checksum(content: object) -> int:
    """Return a 32-bit checksum of an object's `repr`; unlike `hash`, all processes agree on it."""
    return zlib.crc32(repr(content).encode("utf-8", "replace"))
