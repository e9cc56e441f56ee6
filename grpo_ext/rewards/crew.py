"""The worker processes of a pool. Each has a thread that starts it, feeds it, watches the clock and ends it."""

import json
import os
import pickle
import signal
import subprocess
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import Any

from grpo_ext.common.processes import start_beside
from grpo_ext.rewards.reward import Score

START_LIMIT = 60.0  # seconds for a worker to start, or to import what a reward needs
LONGEST_TIMEOUT = 1e6  # seconds; a longer one overflows `poll`
MAX_FAILED_STARTS = 3  # in a row; then the rows that wait are given up

Result = tuple[Score, str | None]  # a row's score and its error


class Crew:
    """Keeps `size` workers ready, with `timeout` seconds a row and `memory_limit` bytes a worker.

    All methods may be called from any thread.
    """

    def __init__(self, size: int, timeout: float, memory_limit: int):
        self.timeout, self.memory_limit = min(timeout, LONGEST_TIMEOUT), memory_limit
        self.pid = os.getpid()
        self.queue: deque[tuple[Future, bytes]] = deque()
        self.rewards: set[bytes] = set()  # pickled
        self.failed_starts = 0
        self.stopped = False
        self.changed = threading.Condition()
        self.workers = [Worker(self) for _ in range(size)]
        for worker in self.workers:
            worker.start()

    def take(self, reward: bytes, rows: list[tuple[Future, bytes]]) -> None:
        """Score rows with a pickled reward. The future of each message gets a `Result`."""
        with self.changed:
            self.rewards.add(reward)
            self.failed_starts = 0
            self.queue.extend(rows)
            self.changed.notify_all()

    def stop(self) -> None:
        """End all workers and leave the waiting rows unscored. A forked copy of the crew does nothing."""
        if os.getpid() != self.pid:
            return
        with self.changed:
            self.stopped = True
            self.give_up("the pool has ended")
            self.changed.notify_all()
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            if worker is not threading.current_thread():
                worker.join(timeout=5)

    def give_up(self, why: str) -> None:
        """Leave the waiting rows unscored. Call it with the lock held."""
        while row := self.next_row():
            row[0].set_result((None, f"RuntimeError: {why}"))

    def next_row(self) -> tuple[Future, bytes] | None:
        """Take the next row that has not been cancelled from the queue."""
        while self.queue:
            future, message = self.queue.popleft()
            if future.set_running_or_notify_cancel():
                return future, message
        return None

    def next_job(self, worker: "Worker") -> bytes | tuple[Future, bytes] | None:
        """Wait for a reward that the worker has not loaded, or for a row; None when the crew is stopped."""
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

    def may_start(self) -> bool:
        """Return False when the crew is stopped. After failed starts, give the waiting rows up and wait for others."""
        with self.changed:
            while self.failed_starts >= MAX_FAILED_STARTS and not self.stopped:
                self.give_up("no reward worker can be started; their own messages say why")
                self.changed.wait()
            return not self.stopped


class Worker(threading.Thread):
    """A thread with a worker process, and another one when that is spent. The kernel ends the process when the thread ends."""

    process: Any = None  # the `subprocess.Popen`, once it is started

    def __init__(self, crew: Crew):
        super().__init__(name="reward-worker", daemon=True)
        self.crew = crew

    def run(self) -> None:
        while self.crew.may_start():
            self.known: set[bytes] = set()
            self.spent = False  # late, dead, or without memory: not to be used again
            self.connection, theirs = Pipe()
            try:
                self.process = start_beside("grpo_ext.rewards.worker", theirs, self.crew.memory_limit, threads=1)
                self.await_ready()
                self.work()
            except Exception:  # it could not be started, has died outside a row, or imports what a reward needs for too long
                with self.crew.changed:
                    self.crew.failed_starts += 1
            finally:
                self.kill()
                self.connection.close()
                if self.process:
                    self.process.wait()

    def work(self) -> None:
        """Do jobs until the process is spent or the crew is stopped."""
        while not self.spent and (job := self.crew.next_job(self)) is not None:
            if isinstance(job, bytes):
                self.connection.send_bytes(pickle.dumps((job, None)))
                self.await_ready()
                self.known.add(job)
            else:
                future, message = job
                future.set_result(self.score(message))
            self.crew.failed_starts = 0

    def await_ready(self) -> None:
        """Wait until the worker says that it has started, or has loaded a reward."""
        if not self.connection.poll(START_LIMIT):
            raise TimeoutError
        self.connection.recv_bytes()

    def score(self, message: bytes) -> Result:
        """Send a row to the process and return its answer, or the error if it gives none."""
        self.spent = True
        try:
            self.connection.send_bytes(message)
            if not self.connection.poll(self.crew.timeout):
                return None, f"TimeoutError: the row took more than {self.crew.timeout:g} s"
            score, error = json.loads(self.connection.recv_bytes())
        except Exception:  # it has died, has closed its pipe, or has sent something else
            if self.crew.stopped:
                return None, "RuntimeError: the pool has ended"
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.5)
            code = self.process.returncode
            return None, f"ChildProcessError: the worker died with exit code {code}, out of memory or by a crash"
        self.spent = (error or "").startswith("MemoryError")  # its memory stays full
        return score, error

    def kill(self) -> None:
        """End the process, which ends everything below it."""
        if self.process:
            for number in (signal.SIGTERM, signal.SIGCONT):  # a reward may have stopped its group
                self.process.send_signal(number)
