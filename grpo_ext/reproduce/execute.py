"""Run jobs: tiny ones in parallel single-threaded processes, others with `accelerate launch`."""

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

from grpo_ext.common.run_time import counted
from grpo_ext.observe.read_run import learned_nothing
from grpo_ext.reproduce.runs import Job
from grpo_ext.run.ranks import EXIT_INTERRUPTED, LAUNCHER

LOG = "log.txt"  # the output of a job, in its folder


def predicted_minutes(jobs: list[Job], processes: int) -> float | None:
    """Predict how many minutes the unfinished jobs will take, with one idle core per process.

    Returns `None` if the time of an unfinished job is unknown.
    """
    total = 0.0
    for job in jobs:
        if job.is_done:
            continue
        if job.seconds is None:
            return None
        total += job.seconds
    return total / processes / 60


def execute(jobs: list[Job], processes: int, by_launcher: bool = False) -> list[Job]:
    """Run all jobs that are not done yet.

    A training run that was killed continues from its checkpoint; a warm start begins again.

    Args:
        jobs: the jobs; each comes after the job that it needs.
        processes: the number of jobs to run in parallel; ignored with `by_launcher`.
        by_launcher: whether to run jobs one after another, each with `accelerate launch` and the
            recipe's number of processes.

    Returns:
        The jobs that failed, and those that needed them.

    Raises:
        ValueError: if the folder of a job has files that this command did not write or, with
            `by_launcher`, if a recipe or its accelerate config is invalid.
        SystemExit: if SIGTERM stopped this process or, with `by_launcher`, a signal stopped a job.
    """
    waiting = [job for job in jobs if not job.is_done]
    if by_launcher:
        return launch_in_turn(waiting, Progress(jobs, waiting, 1))
    progress = Progress(jobs, waiting, processes)
    failed: list[Job] = []
    with running() as started:
        while waiting or started:
            for job in [*waiting]:
                if job.needs in failed:
                    waiting.remove(job)
                    failed.append(job)
                    progress.print_end(job, failed=True)
            ready = [job for job in waiting if job.needs is None or job.needs.is_done]
            num_idle = processes - len(started)
            for job in ready[:num_idle]:
                waiting.remove(job)
                job.begin()
                started[job] = (begin_process(job), time.perf_counter())
            if not started:
                continue
            wait([process.sentinel for process, _ in started.values()])
            for job, (process, begun) in [*started.items()]:
                if process.exitcode is not None:
                    del started[job]
                    seconds = time.perf_counter() - begun
                    finish(job, process.exitcode, seconds, failed)
                    progress.print_end(job, failed=job in failed)
    return failed


def launch_in_turn(jobs: list[Job], progress: "Progress") -> list[Job]:
    """Run jobs with `accelerate launch`, one after another, and return those that failed.

    `progress` prints a line after each job.

    Raises:
        ValueError: if a job's folder has files that this command did not write, or if a recipe or
            its accelerate config is invalid.
        SystemExit: if a signal stopped a job.
    """
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.run.launch import launch

    failed: list[Job] = []
    for job in jobs:
        job.begin()
        path, overrides = job.arguments
        start = time.perf_counter()
        recipe = load_recipe(path, overrides)
        code = launch(job.module, ["--config", path, *overrides], recipe)
        if code == EXIT_INTERRUPTED or code > 128:
            sys.exit(code)
        seconds = time.perf_counter() - start
        finish(job, code, seconds, failed)
        progress.print_end(job, failed=job in failed)
    return failed


def finish(
    job: Job,
    code: int,
    seconds: float,
    failed: list[Job],
) -> None:
    """Record a job that has ended; a run that learned nothing also counts as done.

    Args:
        job: the job that has ended.
        code: the exit code of the job.
        seconds: the seconds since the job began or was continued.
        failed: the list to which the job is added if it failed.
    """
    done = code == 0
    if code == 1 and job.module != "start":
        done = learned_nothing(job.folder)
    seconds += float(job.state.get("seconds") or 0.0)
    job.record(done=done, seconds=round(seconds, 1))
    if not done:
        failed.append(job)


@contextmanager
def running() -> Iterator[dict[Job, tuple[ForkServerProcess, float]]]:
    """Context manager that stops the running jobs if its block ends early.

    Yields a dict to which the caller adds each running job, with its process and start time. Within
    the block, SIGTERM raises `SystemExit`. If the block ends early, for this or any other reason,
    SIGTERM is sent to the processes that are still running, and the context manager waits until
    they have exited. A GRPO run that is training finishes its current step and writes a checkpoint
    first; a warm start, or a run that is still loading, ends at once.
    """
    started: dict[Job, tuple[ForkServerProcess, float]] = {}
    previous_handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield started
    finally:
        for process, _ in started.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGTERM)
        for process, _ in started.values():
            process.join()
        signal.signal(signal.SIGTERM, previous_handler)


def stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def begin_process(job: Job) -> ForkServerProcess:
    """Start a job in a new process, forked from a process that has already imported torch and TRL.

    The output of the job is appended to `LOG` in its folder.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grpo_ext.reproduce.preloaded"])
    log = job.folder / LOG
    process = context.Process(
        target=work,
        args=(job.module, job.arguments, str(log), os.getpid()),
    )
    process.start()
    return process


def work(
    module: str,
    arguments: tuple[Any, ...],
    log: str,
    launcher: int,
) -> None:
    """Run a job in this process, on one thread, and exit with the job's exit code.

    Args:
        module: the module of the job, `Job.module`.
        arguments: the arguments of the job, `Job.arguments`.
        log: the file to which the output of the process is appended.
        launcher: the process ID of the launching process; if that process ends, so does this one.
    """
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

        path, overrides = arguments
        code = main(["--config", path, *overrides])
    print(f"{time.process_time():.1f} s of CPU time", flush=True)
    sys.exit(code)


def place_of_message(job: Job) -> str:
    """Return a phrase that says where to find the error message of a job that failed."""
    log = job.folder / LOG
    return f"see {log}" if log.exists() else "its message is above"


class Progress:
    """Prints a line for each job that ends, with the time that the remaining jobs will take.

    Args:
        jobs: all jobs.
        unfinished: the jobs that are not done yet.
        processes: the number of jobs that run in parallel.
    """

    def __init__(
        self,
        jobs: list[Job],
        unfinished: list[Job],
        processes: int,
    ) -> None:
        self.total = len(jobs)
        self.processes = processes
        self.unfinished = list(unfinished)
        self.finished = 0
        self.seconds = 0.0  # total duration of the finished jobs
        self.predicted = 0.0  # predicted duration of the finished jobs

    def print_end(self, job: Job, failed: bool) -> None:
        """Count a job that has ended, and print how long it took and the time left for the others.

        If the job failed, print where to find its error message instead; if it was not run because
        the job that it needs failed, print that.
        """
        self.unfinished.remove(job)
        number = self.total - len(self.unfinished)
        if job.needs is not None and not job.needs.is_done:
            cause = f"{job.needs.name} failed"
            message = f"{number}/{self.total} {job.name} was not run, because {cause}."
            print(f"[red]{escape(message)}[/red]")
            return
        seconds = float(job.state.get("seconds") or 0.0)
        self.finished += 1
        self.seconds += seconds
        self.predicted += job.seconds or 0.0
        if failed:
            message = f"{number}/{self.total} {job.name} failed; {place_of_message(job)}."
            print(f"[red]{escape(message)}[/red]")
            return
        print(f"{number}/{self.total} {job.name}: {seconds:.0f} s{self.remaining_time()}")

    def remaining_time(self) -> str:
        """Return how long the unfinished jobs will take, such as `; about 3 minutes left`.

        The estimate is based on the jobs that have ended. Returns `""` if no job is left.
        """
        if not self.unfinished:
            return ""
        if self.predicted:
            remaining = sum(job.seconds or 0.0 for job in self.unfinished)
            remaining *= self.seconds / self.predicted
        else:
            remaining = len(self.unfinished) * self.seconds / self.finished
        minutes = max(1, round(remaining / self.processes / 60))
        return f"; about {counted(minutes, 'minute')} left"
