"""Run CPU-heavy rewards in worker processes, with a deadline for each row and a memory limit.

    with RewardPool(4, timeout=5.0) as pool:
        scores, errors = pool.score(build("accuracy"), {"completions": [...], "solution": [...]})

A worker that dies is replaced. If the trainer dies, its workers end as well, and each of them kills
the processes that its rewards have started. If a reward is registered with `needs_cpu="formulas"`,
only rows that compare formulas, or on which the reward fails, go to a worker. All other rows of the
reward are scored in the trainer's process, which takes microseconds.
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

# Arguments that are not sent as columns: completions are sent row by row, and the others exist only
# in the trainer's process.
LOCAL = ("completions", "trainer_state", "log_extra", "log_metric", "environments")

Row = tuple[dict[str, Any], bytes]  # a row's arguments, and the message that requests its score


class RewardPool(AbstractContextManager):
    """A pool of worker processes that score rows; as a context manager, it stops them on exit.

    The workers are started when they are first needed.

    Args:
        workers: the number of workers, each of which scores one row at a time on one CPU core.
        timeout: the time limit for a row, in seconds. A row that exceeds it stays unscored, and its
            worker is killed.
        memory_limit: the maximum size of a worker's data segment, in bytes. A row that needs more
            fails with a `MemoryError`.
    """

    def __init__(self, workers: int, *, timeout: float = 5.0, memory_limit: int = 2**30):
        self.settings = (workers, timeout, memory_limit)
        self._lock = threading.Lock()
        self._worker_pool: WorkerPool | None = None
        # The messages and futures of `begin`, by process id and pickled reward. A forked process
        # has none of its parent's workers.
        self._begun: dict[tuple[int, bytes], tuple[list[bytes], list[Future]]] = {}

    def begin(self, reward: Reward, arguments: dict[str, Any]) -> None:
        """Start scoring rows in advance, for a later call of `score` with the same arguments.

        Rows that are still queued from an earlier call of `begin` for the same reward are canceled.
        Errors are ignored here, because `score` reports all of them.
        """
        with suppress(Exception):
            packed, rows = prepared(reward, arguments)
            key = (os.getpid(), packed)
            _, previous = self._begun.pop(key, ([], []))
            cancel(previous)
            messages = [message for _, message in rows]
            futures = self._hand_out(reward, packed, rows)
            self._begun[key] = (messages, futures)

    def score(
        self, reward: Reward, arguments: dict[str, Any]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Return the scores, in the order of the completions, and the error messages by row index.

        A row with an error has the score `None`. If `begin` was called with the same arguments, the
        scores come from that call.

        Args:
            reward: the reward, which must be registered.
            arguments: the arguments that TRL passes to rewards: `completions` and the columns.
        """
        count = len(arguments["completions"])
        try:
            packed, rows = prepared(reward, arguments)
        except Exception as error:
            return [None] * count, dict.fromkeys(range(count), in_full(error))
        begun_messages, futures = self._begun.pop((os.getpid(), packed), ([], []))
        try:
            if begun_messages != [message for _, message in rows]:
                cancel(futures)
                futures = self._hand_out(reward, packed, rows)
            wait(futures)
        finally:
            cancel(futures)
        scores = []
        errors = {}
        for row, future in enumerate(futures):
            score, error_text = future.result()
            scores.append(score)
            if error_text is not None:
                errors[row] = error_text
        return scores, errors

    def _hand_out(self, reward: Reward, packed: bytes, rows: list[Row]) -> list[Future]:
        """Start scoring rows, and return a future for the (score, error) of each row.

        With `needs_cpu="formulas"`, rows that do not compare formulas are scored in this process,
        except those on which the reward fails.

        Args:
            reward: the reward.
            packed: the pickled reward.
            rows: the rows from `prepared`.
        """
        futures: list[Future] = []
        jobs = []
        for arguments, message in rows:
            future: Future = Future()
            futures.append(future)
            with suppress(Exception), without_engine():  # errors are left for a worker to report
                if reward.needs_cpu == "formulas":
                    [score] = map(as_score, reward(**arguments))
                    future.set_result((score, None))
            if not future.done():
                jobs.append((future, message))
        if jobs:
            self._ready_worker_pool().take(packed, jobs)
        return futures

    def close(self) -> None:
        """Stop all workers. The pool starts new ones when it is used again."""
        with self._lock:
            worker_pool = self._worker_pool
            self._worker_pool = None
            self._begun.clear()
        if worker_pool is not None:
            worker_pool.stop()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready_worker_pool(self) -> WorkerPool:
        """Return this process's worker pool, which is created on the first use and after a fork."""
        with self._lock:
            if self._worker_pool is None or self._worker_pool.pid != os.getpid():
                self._worker_pool = WorkerPool(*self.settings)
                weakref.finalize(self, self._worker_pool.stop)
            return self._worker_pool


def cancel(futures: list[Future]) -> None:
    for future in futures:
        future.cancel()


def prepared(reward: Reward, arguments: dict[str, Any]) -> tuple[bytes, list[Row]]:
    """Return the pickled reward and a `Row` for each completion.

    A row holds the completion and the columns that the reward reads, but none of the arguments that
    exist only in the trainer's process. For a reward that compares formulas, images are removed
    from the prompts.
    """
    packed = pickle.dumps(reward)
    portable = {name: arguments[name] for name in arguments if name not in LOCAL}
    columns = reward.select_arguments(portable)
    if reward.needs_cpu == "formulas" and columns.get("prompts") is not None:
        columns["prompts"] = [without_images(prompt) for prompt in columns["prompts"]]
    rows: list[Row] = []
    for row, completion in enumerate(arguments["completions"]):
        row_arguments = {"completions": [completion]}
        for name, column in columns.items():
            if column is not None:
                row_arguments[name] = [column[row]]
        rows.append((row_arguments, pickle.dumps((packed, row_arguments))))
    return packed, rows


def without_images(prompt: Any) -> Any:
    """Return a prompt without the images in its messages.

    If the content of a message is a list of blocks, only its text blocks are kept. Workers that
    compare formulas do not need the images, which are large.
    """
    if not isinstance(prompt, list):
        return prompt
    messages = []
    for message in prompt:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            texts = [
                block
                for block in content
                if isinstance(block, dict) and block.get("type") == "text"
            ]
            message = {**message, "content": texts}
        messages.append(message)
    return messages
