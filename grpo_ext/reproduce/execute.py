"""Jobs: tiny ones as parallel single-thread processes, others in turn by `accelerate launch`."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from types import FrameType
from typing import Any

from rich import print
from rich.markup import escape

from grpo_ext.observe.read_run import learnt_nothing
from grpo_ext.reproduce.runs import Job
from grpo_ext.run.ranks import EXIT_INTERRUPTED, LAUNCHER

LOG = "log.txt"  # what a job prints, in its folder


def predicted_minutes(jobs: list[Job], processes: int) -> float | None:
    """Return how long the unfinished jobs take on as many idle cores; `None` if nothing says it."""
    left = [job for job in jobs if not job.is_done]
    if any(job.seconds is None for job in left):
        return None
    return sum(job.seconds or 0.0 for job in left) / processes / 60


def execute(jobs: list[Job], processes: int, by_launcher: bool = False) -> list[Job]:
    """Do all jobs that are not done yet; return those that failed, and those that needed them.

    A job that was killed continues from its checkpoint. With `by_launcher` jobs run one after
    another, each by `accelerate launch` with the recipe's number of processes. `SystemExit` if a
    signal stopped one of them.
    """
    left = [job for job in jobs if not job.is_done]
    if by_launcher:
        return launch_in_turn(left, Progress(jobs, left, 1))
    progress = Progress(jobs, left, processes)
    failed: list[Job] = []
    with running() as started:
        while left or started:
            for job in [job for job in left if job.needs in failed]:
                left.remove(job)
                failed.append(job)
                progress.tell(job, True)
            ready = [job for job in left if job.needs is None or job.needs.is_done]
            for job in ready[: processes - len(started)]:
                left.remove(job)
                job.begin()
                started[job] = (begin_process(job), time.perf_counter())
            if not started:
                continue
            wait([process.sentinel for process, _ in started.values()])
            for job, (process, begun) in [*started.items()]:
                if process.exitcode is not None:
                    del started[job]
                    finish(job, process.exitcode, time.perf_counter() - begun, failed)
                    progress.tell(job, job in failed)
    return failed


def launch_in_turn(jobs: list[Job], progress: "Progress") -> list[Job]:
    """Train by `accelerate launch`, one job after another; return those that failed."""
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.run.launch import launch

    failed: list[Job] = []
    for job in jobs:
        job.begin()
        path, words = job.arguments
        start = time.perf_counter()
        code = launch(job.module, ["--config", path, *words], load_recipe(path, words))
        if code == EXIT_INTERRUPTED or code > 128:
            sys.exit(code)
        finish(job, code, time.perf_counter() - start, failed)
        progress.tell(job, job in failed)
    return failed


def finish(job: Job, code: int, seconds: float, failed: list[Job]) -> None:
    """Record a job that has ended; a run that learnt nothing is done as well."""
    done = code == 0 or (code == 1 and job.module != "start" and learnt_nothing(job.folder))
    before = float(job.state.get("seconds") or 0.0)
    job.record(done=done, seconds=round(before + seconds, 1))
    if not done:
        failed.append(job)


@contextmanager
def running() -> Iterator[dict[Job, tuple[ForkServerProcess, float]]]:
    """Yield the running processes; if this one is stopped, they stop with a checkpoint."""
    started: dict[Job, tuple[ForkServerProcess, float]] = {}
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield started
    finally:
        for process, _ in started.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGTERM)
        for process, _ in started.values():
            process.join()
        signal.signal(signal.SIGTERM, before)


def stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def begin_process(job: Job) -> ForkServerProcess:
    """Start a job in a process that begins with torch and TRL loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grpo_ext.reproduce.preloaded"])
    process = context.Process(
        target=work, args=(job.module, job.arguments, str(job.folder / LOG), os.getpid())
    )
    process.start()
    return process


def work(module: str, arguments: tuple[Any, ...], log: str, launcher: int) -> None:
    """Do a job in this process, which prints into `log` and ends with the process `launcher`."""
    import torch

    from grpo_ext.run.ranks import end_with_launcher

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ[LAUNCHER] = str(launcher)
    torch.set_num_threads(1)
    if module == "start":
        from grpo_ext.reproduce.starts import make_start

        end_with_launcher()
        code = make_start(*arguments)
    else:
        from grpo_ext.train import main

        path, words = arguments
        code = main(["--config", path, *words])
    print(f"{time.process_time():.1f} s of the processor", flush=True)
    sys.exit(code)


def place_of_message(job: Job) -> str:
    """Return where a job that failed says why."""
    log = job.folder / LOG
    return f"see {log}" if log.exists() else "its message is above"


class Progress:
    """Prints a line for each job that ends, and how long the others will take."""

    def __init__(self, jobs: list[Job], left: list[Job], processes: int) -> None:
        self.total = len(jobs)
        self.processes = processes
        self.left = list(left)
        self.start = time.perf_counter()
        self.finished: list[tuple[float, float]] = []  # seconds and predicted seconds

    def tell(self, job: Job, failed: bool) -> None:
        """Print that a job has ended."""
        self.left.remove(job)
        seconds = float(job.state.get("seconds") or 0.0)
        self.finished.append((seconds, job.seconds or 0.0))
        number = self.total - len(self.left)
        if failed:
            message = f"{number}/{self.total} {job.name} failed; {place_of_message(job)}."
            print(f"[red]{escape(message)}[/red]")
            return
        print(f"{number}/{self.total} {job.name}: {seconds:.0f} s{self.rest()}")

    def rest(self) -> str:
        """Return how long the jobs that are left will take, by those that have ended."""
        spent = sum(seconds for seconds, _ in self.finished)
        predicted = sum(seconds for _, seconds in self.finished)
        if not self.left:
            return ""
        if predicted:
            left = sum(job.seconds or 0.0 for job in self.left) * spent / predicted
        else:
            left = len(self.left) * spent / len(self.finished)
        return f"; about {left / self.processes / 60:.0f} minutes left"
