"""Processes that begin with torch, TRL and this package loaded: forks of one that has imported them
and done nothing else.

A process that imports them itself computes for four seconds before it begins. A fork is as real: it
has an id, a session, an environment and signals of its own. What a command line or a launcher
starts stays a matter of the tests of those.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.support.places import REPO

CONTEXT = multiprocessing.get_context("forkserver")
LIMIT = 1200.0  # seconds until a test gives up: a net that only what hangs ends in
STARTED: list[Forked] = []


class Forked:
    """A call of `function` in a process and a session of its own; its result is the exit code.

    Args:
        function: importable, as are its arguments.
        environment: variables added to this process's.
        folder: where it runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *words: Any,
        environment: dict | None = None,
        folder: Path = REPO,
    ):
        _serve()
        # a file: a pipe that nobody reads is full after some steps, and then the process waits
        self._printed = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self._process = CONTEXT.Process(
            target=_begin, args=(function, words, variables, str(folder), self._printed.name)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        # those that have ended are let go, with the descriptors that they hold
        STARTED[:] = [process for process in STARTED if process.poll() is None]
        STARTED.append(self)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float = LIMIT) -> int:
        """The exit code, or minus the signal that ended it; after so many seconds it is killed."""
        self._process.join(seconds)
        code = self.poll()
        if code is None:
            self.kill()
            raise AssertionError(f"it took more than {seconds:g} s:\n{self.printed[-3000:]}")
        return code

    def wait_for(self, words: str) -> None:
        """Until it has printed these."""
        end = time.monotonic() + LIMIT
        while words not in self.printed:
            assert self.poll() is None and time.monotonic() < end, self.printed[-3000:]
            time.sleep(0.02)

    def kill(self) -> None:
        """End it and its session."""
        for end in (
            os.killpg,
            os.kill,
        ):  # it may have ended, and may not have begun its session yet
            with suppress(ProcessLookupError):
                end(self.pid, signal.SIGKILL)
        self._process.join()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def printed(self) -> str:
        """What it has printed so far, to stdout and stderr."""
        return Path(self._printed.name).read_text(errors="replace")


def on_ranks(
    count: int,
    function: Callable[..., Any],
    *words: Any,
    environment: dict | None = None,
    code: int = 0,
) -> str:
    """Call `function` on so many ranks of a CPU, all of which must end with `code`; what the first
    one printed.

    They have the variables that torch's launcher sets. Where one fails, the others are killed, as
    it does.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    shared |= {"ACCELERATE_USE_CPU": "true", **(environment or {})}
    places = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(count)]
    ranks = [
        Forked(function, *words, environment={key: str(place[key]) for key in place})
        for place in places
    ]
    end = time.monotonic() + LIMIT
    while None in (codes := [rank.poll() for rank in ranks]) and time.monotonic() < end:
        if any(found not in (None, code) for found in codes):
            break
        time.sleep(0.02)
    for rank in [rank for rank in ranks if rank.poll() is None]:
        rank.kill()
    if any(rank.poll() != code for rank in ranks):
        raise AssertionError(
            "\n".join(
                f"rank {i}: {rank.poll()}\n{rank.printed[-3000:]}" for i, rank in enumerate(ranks)
            )
        )
    return ranks[0].printed


@atexit.register
def end_what_tests_left() -> None:
    """Without this, Python would wait for a process whose test has failed."""
    for process in STARTED:
        if process.poll() is None:
            process.kill()


def run_script(path: Path | str, *words: str) -> None:
    """What `python PATH WORDS` does."""
    sys.argv[:] = [str(path), *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(str(path), run_name="__main__")


def run_module(name: str, *words: str) -> None:
    """What `python -m NAME WORDS` does."""
    sys.argv[:] = [name, *words]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _serve() -> None:
    """Start the process that is forked, if there is none yet.

    In this checkout, whatever folder a test is in.
    """
    CONTEXT.set_forkserver_preload(["tests.support.loaded"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPO), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _begin(
    function: Callable[..., Any], words: tuple, variables: dict[str, str], folder: str, printed: str
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    file = os.open(printed, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also where tests run in the background of a shell
    sys.exit(function(*words))
