"""CPU-heavy rewards in worker processes: a memory limit, a deadline a row, and a replacement for each worker that is killed.

    with RewardPool(4, timeout=5.0) as pool:
        scores, errors = pool.score(build("accuracy"), {"completions": [...], "solution": [...]})

When the trainer dies, however it dies, the kernel ends the workers, and each worker ends the processes that rewards have
started. A reward that needs workers for formulas judges its other rows in the trainer, in microseconds.
"""

import os
import pickle
import threading
import weakref
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, suppress
from typing import Any

from grpo_ext.rewards.engine import without_engine
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.scores import as_score, in_full
from grpo_ext.rewards.worker_pool import WorkerPool

# What the trainer passes and another process cannot have.
LOCAL = ("completions", "trainer_state", "log_extra", "log_metric", "environments")

Row = tuple[
    dict[str, Any], bytes
]  # the arguments for a row, and the message that asks a worker for its score


class RewardPool(AbstractContextManager):
    """Workers that score rows.

    Args:
        workers: how many rows are scored at once; each takes one CPU core.
        timeout: seconds a row may take; then its worker is killed and the row stays unscored.
        memory_limit: bytes of data a worker may hold; a row that needs more gets a `MemoryError`.
    """

    def __init__(self, workers: int, *, timeout: float = 5.0, memory_limit: int = 2**30):
        self.settings = (workers, timeout, memory_limit)
        self._lock = threading.Lock()
        self._worker_pool: WorkerPool | None = None
        # What `begin` has handed out, by process and reward: a fork has none of its parent's workers.
        self._begun: dict[tuple[int, bytes], tuple[list[bytes], list[Future]]] = {}

    def begin(self, reward: Reward, given: dict[str, Any]) -> None:
        """Start to score the rows of a later call of `score`, which reports all errors, instead of those begun before."""
        with suppress(Exception):
            packed, rows = prepared(reward, given)
            for future in self._begun.pop((os.getpid(), packed), ([], []))[1]:
                future.cancel()
            self._begun[os.getpid(), packed] = (
                [message for _, message in rows],
                self._hand_out(reward, packed, rows),
            )

    def score(
        self, reward: Reward, given: dict[str, Any]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Return the scores in the order of the completions and, by row, the errors of rows without a score.

        `reward` is a registered reward. `given` is what TRL passes to rewards: `completions` and the columns.
        """
        count = len(given["completions"])
        try:
            packed, rows = prepared(reward, given)
        except Exception as error:
            return [None] * count, dict.fromkeys(range(count), in_full(error))
        begun, futures = self._begun.pop((os.getpid(), packed), (None, []))
        try:
            if begun != [message for _, message in rows]:
                for future in futures:
                    future.cancel()
                futures = self._hand_out(reward, packed, rows)
            wait(futures)
        finally:
            for future in futures:
                future.cancel()
        found = [future.result() for future in futures]
        return [score for score, _ in found], {
            row: error for row, (_, error) in enumerate(found) if error is not None
        }

    def _hand_out(self, reward: Reward, packed: bytes, rows: list[Row]) -> list[Future]:
        """Return the futures of the rows' scores and errors. Only rows that need a worker go to one."""
        futures: list[Future] = [Future() for _ in rows]
        tasks = []
        for future, (arguments, message) in zip(futures, rows, strict=True):
            with suppress(Exception), without_engine():  # a worker reports what is wrong
                if reward.needs_cpu == "formulas":
                    [score] = map(as_score, reward(**arguments))
                    future.set_result((score, None))
            if not future.done():
                tasks.append((future, message))
        if tasks:
            self._ready_worker_pool().take(packed, tasks)
        return futures

    def close(self) -> None:
        """End all workers. The pool starts new ones when it is used again."""
        with self._lock:
            workers, self._worker_pool = self._worker_pool, None
            self._begun.clear()
        if workers is not None:
            workers.stop()

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _ready_worker_pool(self) -> WorkerPool:
        with self._lock:
            if self._worker_pool is None or self._worker_pool.pid != os.getpid():
                self._worker_pool = WorkerPool(*self.settings)
                weakref.finalize(self, self._worker_pool.stop)
            return self._worker_pool


def prepared(reward: Reward, given: dict[str, Any]) -> tuple[bytes, list[Row]]:
    """Return the pickled reward and the rows."""
    packed = pickle.dumps(reward)
    columns = reward.arguments({name: value for name, value in given.items() if name not in LOCAL})
    if reward.needs_cpu == "formulas" and columns.get("prompts") is not None:
        columns["prompts"] = [without_images(prompt) for prompt in columns["prompts"]]
    rows: list[Row] = []
    for row, completion in enumerate(given["completions"]):
        own = {
            "completions": [completion],
            **{name: [value[row]] for name, value in columns.items() if value is not None},
        }
        rows.append((own, pickle.dumps((packed, own))))
    return packed, rows


def without_images(prompt: Any) -> Any:
    """Return a prompt with the text blocks of its messages alone: a worker that compares formulas
    needs no images, which are large.
    """
    if not isinstance(prompt, list):
        return prompt
    messages = []
    for message in prompt:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            blocks = [b for b in content if isinstance(b, dict) and b.get("type") == "text"]
            message = {**message, "content": blocks}
        messages.append(message)
    return messages
