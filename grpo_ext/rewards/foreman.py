"""The thread behind a pool: it alone starts, feeds, watches and ends the worker processes."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Pipe, wait
from typing import Any

START_LIMIT = 60.0  # seconds for a worker to start, or to import what a reward needs
TICK = 0.02  # seconds between two looks at who is late
MAX_EXTRA = 8  # workers beyond the crew, in place of those that are overdue
STEPS_BACK = 5  # in priority, of a worker that is overdue: a third of what the others get, so that it may still finish
MAX_FAILED_STARTS = 3  # in a row; then the rows that wait are given up


class Worker:
    """A process, the pipe to it, and what it is at: "starting", "meeting" a reward, "scoring" a row, or "idle"."""

    def __init__(self, memory_limit: int):
        self.connection, theirs = Pipe()
        path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_ext.rewards.worker"]
            + [str(number) for number in (theirs.fileno(), os.getpid(), memory_limit)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the trainer
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.known: set[int] = set()
        self.task: Future | None = None
        self.overdue = False
        self.at("starting")

    def at(self, stage: str) -> None:
        self.stage, self.since = stage, time.monotonic()

    def send(self, message: bytes, stage: str) -> None:
        self.at(stage)
        with suppress(OSError):  # it has died, which the closed pipe will tell
            self.connection.send_bytes(message)

    def kill(self) -> None:
        """End the process, which ends all below it. It may take a while; `process.wait` would hold up the others."""
        for number in (signal.SIGTERM, signal.SIGCONT):  # a reward may have stopped its group
            self.process.send_signal(number)
        self.connection.close()


class Foreman(threading.Thread):
    """Keeps `crew` workers at work, for `timeout` seconds a row and with `memory_limit` bytes each.

    `take` and `stop` may be called from any thread.
    """

    def __init__(self, crew: int, timeout: float, memory_limit: int):
        super().__init__(name="reward-foreman", daemon=True)
        self.crew, self.timeout, self.memory_limit = crew, timeout, memory_limit
        self.pid = os.getpid()
        self.workers: list[Worker] = []
        self.going: list[subprocess.Popen] = []  # killed, and not yet reaped
        self.queue: deque[tuple[Future, bytes]] = deque()
        self.rewards: dict[int, bytes] = {}
        self.usual = 0.0  # seconds a row takes, a running mean
        self.failed_starts = 0
        self.stopping = False
        self._heard, self._bell = Pipe(duplex=False)
        self._ringing = threading.Lock()

    def take(self, key: int, packed: bytes, tasks: list[tuple[Future, bytes]]) -> None:
        """Have rows scored by the reward `packed`, which goes by `key`: each message's future gets a score and an error."""
        self.rewards[key] = packed
        self.failed_starts = 0
        self.queue.extend(tasks)
        self._ring()

    def stop(self) -> None:
        """End all workers, and the thread."""
        if os.getpid() == self.pid:
            self.stopping = True
            self._ring()
            if self is not threading.current_thread():
                self.join(timeout=5)

    def _ring(self) -> None:
        with self._ringing, suppress(OSError):
            self._bell.send_bytes(b"!")

    def run(self) -> None:
        try:
            while not self.stopping:
                self.hire()
                self.assign()
                pipes: dict[Any, Worker] = {worker.connection: worker for worker in self.workers}
                busy = any(worker.stage != "idle" for worker in self.workers)
                for pipe in wait([self._heard, *pipes], TICK if busy else None):
                    if pipe is self._heard:
                        self._heard.recv_bytes()
                    else:
                        self.hear(pipes[pipe])
                self.dismiss()
        finally:
            for worker in list(self.workers):
                self.drop(worker, "RuntimeError: the pool has ended")
            self.give_up("RuntimeError: the pool has ended")
            for process in self.going:
                process.wait()

    def waiting(self) -> Iterator[tuple[Future, bytes]]:
        """Take rows off the queue, without those that nobody asks for any more."""
        while self.queue:
            future, message = self.queue.popleft()
            if future.set_running_or_notify_cancel():
                yield future, message

    def give_up(self, error: str) -> None:
        """Leave all that waits unscored."""
        for future, _ in self.waiting():
            future.set_result((None, error))

    def hire(self) -> None:
        """Start workers in place of those that are gone or overdue.

        So no more than the crew run at full priority, and no row waits for the start of a worker after another was given up.
        """
        if self.failed_starts >= MAX_FAILED_STARTS:
            return
        missing = self.crew - sum(not worker.overdue for worker in self.workers)
        for _ in range(min(missing, self.crew + MAX_EXTRA - len(self.workers))):
            self.workers.append(Worker(self.memory_limit))

    def assign(self) -> None:
        """Give every idle worker something to do."""
        for worker in [worker for worker in self.workers if worker.stage == "idle"]:
            if (key := next((key for key in list(self.rewards) if key not in worker.known), None)) is not None:
                worker.known.add(key)
                worker.send(pickle.dumps((key, self.rewards[key], None)), "meeting")
            elif task := next(self.waiting(), None):
                worker.task, message = task
                worker.send(message, "scoring")

    def hear(self, worker: Worker) -> None:
        """Take in what a worker says, or that it has died."""
        try:
            answer = pickle.loads(worker.connection.recv_bytes())
        except Exception:  # it has died, or has closed its pipe
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(timeout=0.5)
            self.failed_starts += worker.stage != "scoring"
            code = worker.process.returncode
            self.drop(worker, f"ChildProcessError: the worker died with exit code {code}, out of memory or by a crash")
            return
        if worker.stage != "starting":  # one that starts may still fail at what the reward needs
            self.failed_starts = 0
        out_of_memory = False
        if worker.task is not None:
            worker.task.set_result(answer)
            worker.task = None
            self.usual += 0.05 * (time.monotonic() - worker.since - self.usual)
            out_of_memory = (answer[1] or "").startswith("MemoryError")
        worker.at("idle")
        if worker.overdue or out_of_memory:  # its priority is low, or its memory full, for good
            self.drop(worker)

    def dismiss(self) -> None:
        """Kill who is past the deadline, and put those that are overdue aside."""
        now, patience = time.monotonic(), max(0.2, self.timeout / 20, 10 * self.usual)
        for worker in [worker for worker in self.workers if worker.stage != "idle"]:
            spent = now - worker.since
            if worker.connection.poll():  # it has answered, or died, while others were looked after
                continue
            if worker.stage != "scoring":
                if spent > START_LIMIT:
                    self.failed_starts += 1
                    self.drop(worker)
            elif spent > self.timeout:
                self.drop(worker, f"TimeoutError: the row took more than {self.timeout:g} s")
            elif spent > patience and not worker.overdue:
                worker.overdue = True
                with suppress(OSError):
                    group = os.PRIO_PGRP, worker.process.pid
                    os.setpriority(*group, os.getpriority(*group) + STEPS_BACK)
        if self.failed_starts >= MAX_FAILED_STARTS:  # the next rows are a reason to try again
            self.give_up("RuntimeError: no reward worker can be started; their own messages say why")

    def drop(self, worker: Worker, error: str | None = None) -> None:
        self.workers.remove(worker)
        worker.kill()
        self.going = [process for process in [*self.going, worker.process] if process.poll() is None]
        if worker.task is not None:
            worker.task.set_result((None, error))
