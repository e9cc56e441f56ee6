"""The workers of a `RewardPool`, each with a thread that starts, feeds, times and stops it."""

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

from grpo_ext.common.processes import start_beside
from grpo_ext.rewards.reward import Score

START_LIMIT = 60.0  # seconds for a worker to start, or to import the modules of a reward
LONGEST_TIMEOUT = 1e6  # seconds; a longer one overflows `poll`
MAX_EXTRA = 8  # workers beyond the pool's size, to replace overdue ones
# Added to the niceness of an overdue worker: it gets about a third of the CPU time of the others,
# and may still finish.
EXTRA_NICENESS = 5
END_LIMIT = 5.0  # seconds to wait for the exit code of a worker that closed its pipe
MAX_FAILED_STARTS = 3  # consecutive; then the waiting rows are given up

Result = tuple[Score, str | None]  # a row's score and its error
Job = tuple[Future, bytes]  # a row's future, which gets a `Result`, and the message for the worker


class WorkerPool:
    """A set of workers that score rows; a worker that dies or hangs is replaced.

    The first call of `take` starts the workers.

    A row that takes far longer than usual makes its worker overdue: the worker continues at low
    priority and another one is started, so that a few hanging rows do not hold up a batch. Methods
    may be called from any thread; some require that the caller holds the lock `changed`.

    Args:
        size: the number of workers to keep running, not counting overdue ones.
        timeout: the time limit for a row, in seconds.
        memory_limit: the maximum size of a worker's data segment, in bytes.
    """

    def __init__(self, size: int, timeout: float, memory_limit: int):
        self.size = size
        self.timeout = min(timeout, LONGEST_TIMEOUT)
        self.memory_limit = memory_limit
        self.pid = os.getpid()
        self.workers: list[Worker] = []
        self.queue: deque[Job] = deque()
        self.rewards: set[bytes] = set()  # pickled
        self.usual = 0.0  # seconds that a row takes, as a running mean
        self.failed_starts = 0
        self.stopped = False
        self.changed = threading.Condition()

    @property
    def patience(self) -> float:
        """The number of seconds after which a row is overdue."""
        return max(0.2, self.timeout / 20, 10 * self.usual)

    def take(self, reward: bytes, jobs: list[Job]) -> None:
        """Queue rows to be scored with a pickled reward, and start workers if some are missing."""
        with self.changed:
            self.rewards.add(reward)
            self.failed_starts = 0
            self.queue.extend(jobs)
            self.fill()
            self.changed.notify_all()

    def stop(self) -> None:
        """Stop all workers and leave the waiting rows unscored.

        In a forked copy of the pool, do nothing.
        """
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
        """Start missing workers and replacements for overdue ones, or give up the waiting rows.

        Rows are given up if the pool is stopped or workers repeatedly fail before they score a row.
        The caller must hold the lock.
        """
        if self.stopped:
            self.give_up("the reward workers have been stopped")
        elif self.failed_starts >= MAX_FAILED_STARTS:
            self.give_up(
                "reward workers repeatedly did not start, did not load a reward, or died before "
                "they scored a row; see any errors that they printed"
            )
        else:
            missing = self.size - sum(not worker.overdue for worker in self.workers)
            for _ in range(min(missing, self.size + MAX_EXTRA - len(self.workers))):
                worker = Worker(self)
                self.workers.append(worker)
                worker.start()

    def give_up(self, reason: str) -> None:
        """Leave the waiting rows unscored, with `reason` as their error.

        The caller must hold the lock.
        """
        while job := self.next_row():
            future, _ = job
            future.set_result((None, f"RuntimeError: {reason}"))

    def next_row(self) -> Job | None:
        """Remove and return the next row that was not canceled, or `None` if there is none.

        The caller must hold the lock.
        """
        while self.queue:
            future, message = self.queue.popleft()
            if future.set_running_or_notify_cancel():
                return future, message
        return None

    def next_job(self, worker: "Worker") -> bytes | Job | None:
        """Wait for a reward that the worker has not loaded yet, or for a row, and return it.

        Return `None` when the pool is stopped.

        Raises:
            ChildProcessError: if the worker has died or sent something while it was idle.
        """
        with self.changed:
            while not self.stopped:
                if worker.connection.poll():
                    raise ChildProcessError("the worker died while it was idle")
                new_rewards = self.rewards - worker.loaded
                if new_rewards:
                    return new_rewards.pop()
                job = self.next_row()
                if job is not None:
                    return job
                self.changed.wait()
        return None

    def replace(self, worker: "Worker", failed: bool) -> None:
        """Remove a worker whose thread is about to end, and start another one if needed.

        `failed` says whether its process did not start, died while idle, or failed to load a
        reward.
        """
        with self.changed:
            self.workers.remove(worker)
            self.failed_starts += failed
            self.fill()


class Worker(threading.Thread):
    """A thread that starts one worker process, sends it rows, and kills it at the end."""

    process: subprocess.Popen | None = None  # None until it is started
    overdue = False
    spent = False  # whether it is overdue, dead or out of memory, and gets no more rows

    def __init__(self, pool: WorkerPool):
        super().__init__(name="reward-worker", daemon=True)
        self.pool = pool
        self.loaded: set[bytes] = set()  # the pickled rewards that the process has loaded
        self.connection, self.process_connection = Pipe()

    def run(self) -> None:
        failed = True
        try:
            self.process = start_beside(
                "grpo_ext.rewards.worker",
                self.process_connection,
                self.pool.memory_limit,
                threads=1,
            )
            self.await_ready()
            while not self.spent:
                job = self.pool.next_job(self)
                if job is None:
                    break
                self.run_job(job)
                self.pool.failed_starts = 0
            failed = False
        except Exception:
            # The process could not be started, died while it had no row, or took too long to import
            # the modules of a reward.
            pass
        finally:
            self.pool.replace(self, failed)
            self.kill()
            self.connection.close()
            if self.process:
                self.process.wait()

    def run_job(self, job: bytes | Job) -> None:
        """Load a pickled reward in the process, or score a row and set the result of its future."""
        if isinstance(job, bytes):
            self.connection.send_bytes(pickle.dumps((job, None)))
            self.await_ready()
            self.loaded.add(job)
        else:
            future, message = job
            future.set_result(self.score(message))

    def await_ready(self) -> None:
        """Wait until the process has started, or has loaded a reward.

        Raises:
            TimeoutError: if the process sends nothing for `START_LIMIT` seconds.
            EOFError: if the process has ended.
        """
        if not self.connection.poll(START_LIMIT):
            raise TimeoutError
        self.connection.recv_bytes()

    def score(self, message: bytes) -> Result:
        """Send a row to the process and return the row's score and error.

        If the process does not answer in time, or dies, the score is `None` and the error says so.
        Set `spent` if the process must not get another row.
        """
        timeout = self.pool.timeout
        patience = self.pool.patience
        start = time.monotonic()
        self.spent = True
        try:
            self.connection.send_bytes(message)
            if not self.connection.poll(min(patience, timeout)):
                self.step_back()
                if not self.connection.poll(max(0.0, timeout - patience)):
                    return None, f"TimeoutError: the row took more than {timeout:g} s"
            score, error = json.loads(self.connection.recv_bytes())
        except Exception:  # the process died, closed its pipe, or sent something else
            return None, self.cause_of_death()
        self.pool.usual += 0.05 * (time.monotonic() - start - self.pool.usual)
        # A process that ran out of memory may not free it again.
        is_full = error is not None and error.startswith("MemoryError")
        self.spent = self.overdue or is_full
        return score, error

    def cause_of_death(self) -> str:
        """Return the error message for a row for which the process sent no score."""
        if self.pool.stopped:
            return "RuntimeError: the reward workers have been stopped"
        assert self.process is not None
        try:
            self.process.wait(timeout=END_LIMIT)
        except subprocess.TimeoutExpired:
            return (
                "ChildProcessError: the worker sent something other than a score: the reward wrote "
                "to the worker's pipe"
            )
        return (
            f"ChildProcessError: the worker sent no score (exit code {self.process.returncode}): "
            "the reward exited, crashed, ran out of memory or wrote to the worker's pipe"
        )

    def step_back(self) -> None:
        """Mark this worker as overdue, lower its priority, and let the pool start another one."""
        assert self.process is not None
        with self.pool.changed, suppress(OSError):
            self.overdue = True
            self.pool.fill()
            niceness = os.getpriority(os.PRIO_PGRP, self.process.pid)
            os.setpriority(os.PRIO_PGRP, self.process.pid, niceness + EXTRA_NICENESS)

    def kill(self) -> None:
        """Send SIGTERM to the process, which then kills all of its descendants and exits."""
        if self.process:
            for number in (signal.SIGTERM, signal.SIGCONT):  # a reward may have stopped it
                self.process.send_signal(number)
