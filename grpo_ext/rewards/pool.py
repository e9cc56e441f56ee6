"""CPU-heavy rewards in processes of their own: a memory limit, a deadline a row, and a replacement for what is killed.

    with RewardPool(4, timeout=5.0) as pool:
        scores, errors = pool.score(build("accuracy"), {"completions": [...], "solution": [...]})

One thread, the foreman, owns the workers: it starts them, hands out rows one at a time and kills who is late. The kernel
tells a worker when the thread that started it ends, and a worker takes along whatever rewards have started. So nothing is
left behind when the trainer dies, however it dies.

A few hanging rows must not hold up a batch. So a worker that has been on its row for far longer than rows take (`patience`)
goes on, at low priority, but no longer counts as one of the crew, and another takes its place.
"""

import itertools
import os
import pickle
import threading
import weakref
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from grpo_ext.rewards.foreman import Foreman
from grpo_ext.rewards.reward import Reward, Score, plain_text
from grpo_ext.rewards.scores import in_full

# The message that asks for a row's score; or score and error where no worker is needed.
Row = bytes | tuple[Score, str | None]

# What the trainer passes and another process cannot have.
LOCAL = ("completions", "trainer_state", "log_extra", "log_metric", "environments")


class RewardPool:
    """Workers that score rows.

    Args:
        workers: how many rows are scored at once; each takes one CPU core.
        timeout: seconds a row may take; then its worker is killed and the row stays unscored.
        memory_limit: bytes of data a worker may hold; what needs more gets a `MemoryError`. 0: no limit.

    Raises:
        ValueError: if `workers` or `timeout` is not positive.
    """

    def __init__(self, workers: int, *, timeout: float = 5.0, memory_limit: int = 2**30):
        if workers < 1 or timeout <= 0:
            raise ValueError(f"A pool needs at least one worker and a positive timeout, not {workers}, {timeout:g} s.")
        self.settings = (workers, timeout, memory_limit)
        self._lock = threading.Lock()
        self._foreman: Foreman | None = None
        self._keys: dict[Any, int] = {}
        # By reward, what `begin` handed out.
        self._begun: dict[int, tuple[list[Row], list[Future], Foreman | None]] = {}
        self._key = itertools.count()

    def begin(self, reward: Reward, given: dict[str, Any]) -> None:
        """Have rows scored that `score` will be asked for later. Whatever is wrong with them, `score` will tell.

        Args:
            reward, given: as for `score`. What `begin` was given before for the same reward is forgotten.
        """
        with suppress(Exception):
            key, packed, rows = self._prepare(reward, given)
            for future in self._begun.pop(key, ((), ()))[1]:
                future.cancel()
            self._begun[key] = rows, *self._hand_out(reward, key, packed, rows)

    def score(self, reward: Reward, given: dict[str, Any]) -> tuple[list[float | None], dict[int, str]]:
        """Scores in the order of the completions and, by row, the errors of those that have none.

        Args:
            reward: a registered reward.
            given: what TRL passes to rewards; `completions` and the columns.
        """
        count = len(given["completions"])
        try:
            key, packed, rows = self._prepare(reward, given)
        except Exception as error:
            return [None] * count, dict.fromkeys(range(count), in_full(error))
        before, futures, foreman = self._begun.pop(key, ([], [], None))
        if before != rows or (foreman and not foreman.is_alive()):
            for future in futures:
                future.cancel()
            futures, foreman = self._hand_out(reward, key, packed, rows)
        try:
            while wait(futures, timeout=1.0).not_done:
                if foreman and not foreman.is_alive():  # closed by another thread just as the rows were handed over
                    raise RuntimeError("The reward pool was closed while rows were waiting.")
        finally:
            for future in futures:
                future.cancel()
        found = [future.result() for future in futures]
        return [score for score, _ in found], {row: error for row, (_, error) in enumerate(found) if error is not None}

    def _prepare(self, reward: Reward, given: dict[str, Any]) -> tuple[int, bytes, list[Row]]:
        """The reward's key and pickle, and the rows; those that cannot be sent have their error."""
        packed = pickle.dumps(reward)
        with self._lock:
            key = self._keys.setdefault(packed, next(self._key))
        columns = reward.arguments({name: value for name, value in given.items() if name not in LOCAL})
        rows: list[Row] = []
        for row, completion in enumerate(given["completions"]):
            try:
                own = {name: [value[row]] for name, value in columns.items() if value is not None}
                rows.append(pickle.dumps((key, None, {**own, "completions": [plain_text(completion)]})))
            except Exception as error:
                rows.append((None, in_full(error)))
        return key, packed, rows

    def _hand_out(self, reward: Reward, key: int, packed: bytes, rows: list[Row]) -> tuple[list[Future], Foreman | None]:
        """What will hold each row's score and error, and the foreman, if there is anything to do for one."""
        futures: list[Future] = [Future() for _ in rows]
        tasks = []
        for future, row in zip(futures, (self._judged(reward, row) for row in rows), strict=True):
            if isinstance(row, bytes):
                tasks.append((future, row))
            else:
                future.set_result(row)
        foreman = self._ready_foreman() if tasks else None
        if foreman:
            foreman.take(key, packed, tasks)
        return futures, foreman

    def _judged(self, reward: Reward, row: Row) -> Row:
        """The row, or its score where that takes no worker."""
        return row

    def close(self) -> None:
        """End all workers. The pool starts new ones when it is used again."""
        with self._lock:
            foreman, self._foreman = self._foreman, None
        if foreman is not None:
            foreman.stop()

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _ready_foreman(self) -> Foreman:
        with self._lock:
            # a process that was forked from this one has none of its threads
            if self._foreman is None or self._foreman.pid != os.getpid() or not self._foreman.is_alive():
                self._foreman = Foreman(*self.settings)
                self._foreman.start()
                weakref.finalize(self, self._foreman.stop)
            return self._foreman
