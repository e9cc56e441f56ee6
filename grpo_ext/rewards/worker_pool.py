"""The worker processes of a pool. Each has a thread that starts it, feeds it, watches the clock and ends it."""

import json
import os
import pickle
import signal
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import Any

from grpo_ext.common.processes import start_beside
from grpo_ext.rewards.reward import Score

START_LIMIT = 60.0  # seconds for a worker to start, or to import what a reward needs
LONGEST_TIMEOUT = 1e6  # seconds; a longer one overflows `poll`
MAX_EXTRA = 8  # workers beyond the pool's size, in place of overdue ones
STEPS_BACK = 5  # added to the niceness of an overdue worker: it gets a third of the time of the others, and may still finish
END_LIMIT = 5.0  # seconds for a worker that has closed its pipe to end, and to leave its exit code
MAX_FAILED_STARTS = 3  # in a row; then the rows that wait are given up

Result = tuple[Score, str | None]  # a row's score and its error


class WorkerPool:
    """Keeps `size` workers ready, with `timeout` seconds a row and `memory_limit` bytes a worker.

    A row that takes far longer than usual makes its worker overdue: the worker goes on at low priority and another one is
    started, so that a few hanging rows do not hold up a batch. All methods may be called from any thread.
    """

    def __init__(self, size: int, timeout: float, memory_limit: int):
        self.size, self.timeout, self.memory_limit = (
            size,
            min(timeout, LONGEST_TIMEOUT),
            memory_limit,
        )
        self.pid = os.getpid()
        self.workers: list[Worker] = []
        self.queue: deque[tuple[Future, bytes]] = deque()
        self.rewards: set[bytes] = set()  # pickled
        self.usual = 0.0  # seconds a row takes, a running mean
        self.failed_starts = 0
        self.stopped = False
        self.changed = threading.Condition()

    @property
    def patience(self) -> float:
        """Seconds after which a row is overdue."""
        return max(0.2, self.timeout / 20, 10 * self.usual)

    def take(self, reward: bytes, rows: list[tuple[Future, bytes]]) -> None:
        """Score rows with a pickled reward. The future of each message gets a `Result`."""
        with self.changed:
            self.rewards.add(reward)
            self.failed_starts = 0
            self.queue.extend(rows)
            self.fill()
            self.changed.notify_all()

    def stop(self) -> None:
        """End all workers and leave the waiting rows unscored. A forked copy of the pool does nothing."""
        if os.getpid() != self.pid:
            return
        with self.changed:
            self.stopped = True
            self.fill()
            self.changed.notify_all()
            workers = [*self.workers]
        for worker in workers:
            worker.kill()
        for worker in workers:
            if worker is not threading.current_thread():
                worker.join(timeout=5)

    def fill(self) -> None:
        """Start workers in place of those that are gone or overdue, or give the waiting rows up. Call it with the lock held."""
        if not self.stopped and self.failed_starts < MAX_FAILED_STARTS:
            missing = self.size - sum(not worker.overdue for worker in self.workers)
            for _ in range(min(missing, self.size + MAX_EXTRA - len(self.workers))):
                self.workers.append(Worker(self))
                self.workers[-1].start()
            return
        ended = (
            "the pool has ended"
            if self.stopped
            else "no reward worker can be started; their own messages say why"
        )
        while row := self.next_row():
            row[0].set_result((None, f"RuntimeError: {ended}"))

    def next_row(self) -> tuple[Future, bytes] | None:
        """Take the next row that has not been cancelled from the queue."""
        while self.queue:
            future, message = self.queue.popleft()
            if future.set_running_or_notify_cancel():
                return future, message
        return None

    def next_job(self, worker: "Worker") -> bytes | tuple[Future, bytes] | None:
        """Wait for a reward that the worker has not loaded, or for a row; None when the pool is stopped."""
        with self.changed:
            while not self.stopped:
                if worker.connection.poll():
                    raise ChildProcessError("the worker has died while it was idle")
                if unknown := self.rewards - worker.known:
                    return unknown.pop()
                if row := self.next_row():
                    return row
                self.changed.wait()
        return None

    def replace(self, worker: "Worker", failed: bool) -> None:
        """Remove a worker that has failed to start, or is spent, and start another one."""
        with self.changed:
            self.workers.remove(worker)
            self.failed_starts += failed
            self.fill()


class Worker(threading.Thread):
    """A worker process with its thread. The kernel ends the process when the thread ends."""

    process: Any = None  # the `subprocess.Popen`, once it is started
    overdue = False
    spent = False  # late, dead, or without memory: not to be used again

    def __init__(self, pool: WorkerPool):
        super().__init__(name="reward-worker", daemon=True)
        self.pool = pool
        self.known: set[bytes] = set()
        self.connection, self.theirs = Pipe()

    def run(self) -> None:
        failed = True
        try:
            self.process = start_beside(
                "grpo_ext.rewards.worker", self.theirs, self.pool.memory_limit, threads=1
            )
            self.await_ready()
            while not self.spent and (job := self.pool.next_job(self)) is not None:
                if isinstance(job, bytes):
                    self.connection.send_bytes(pickle.dumps((job, None)))
                    self.await_ready()
                    self.known.add(job)
                else:
                    future, message = job
                    future.set_result(self.score(message))
                self.pool.failed_starts = 0
            failed = False
        except Exception:  # it could not be started, has died outside a row, or takes too long to import what a reward needs
            pass
        finally:
            self.pool.replace(self, failed)
            self.kill()
            self.connection.close()
            if self.process:
                self.process.wait()

    def await_ready(self) -> None:
        """Wait until the worker says that it has started, or has loaded a reward."""
        if not self.connection.poll(START_LIMIT):
            raise TimeoutError
        self.connection.recv_bytes()

    def score(self, message: bytes) -> Result:
        """Send a row to the process and return its answer, or the error if it gives none."""
        begun, timeout, patience = time.monotonic(), self.pool.timeout, self.pool.patience
        self.spent = True
        try:
            self.connection.send_bytes(message)
            if not self.connection.poll(min(patience, timeout)):
                self.step_back()
                if not self.connection.poll(max(0.0, timeout - patience)):
                    return None, f"TimeoutError: the row took more than {timeout:g} s"
            score, error = json.loads(self.connection.recv_bytes())
        except Exception:  # it has died, has closed its pipe, or has sent something else
            if self.pool.stopped:
                return None, "RuntimeError: the pool has ended"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=END_LIMIT)
            code = self.process.returncode
            return (
                None,
                f"ChildProcessError: the worker died with exit code {code}, out of memory or by a crash",
            )
        self.pool.usual += 0.05 * (time.monotonic() - begun - self.pool.usual)
        self.spent = self.overdue or (error or "").startswith(
            "MemoryError"
        )  # its memory stays full
        return score, error

    def step_back(self) -> None:
        """Lower the priority of the process, and let the pool start another worker."""
        with self.pool.changed, suppress(OSError):
            self.overdue = True
            self.pool.fill()
            group = os.PRIO_PGRP, self.process.pid
            os.setpriority(*group, os.getpriority(*group) + STEPS_BACK)

    def kill(self) -> None:
        """End the process, which ends everything below it."""
        if self.process:
            for number in (signal.SIGTERM, signal.SIGCONT):  # a reward may have stopped its group
                self.process.send_signal(number)
