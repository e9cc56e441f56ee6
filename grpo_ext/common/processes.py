"""Processes beside a run: how they are started, and how they end with the one that started them."""

import ctypes
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1


def start_beside(
    module: str, pipe: Connection, *words: Any, threads: int, keep: tuple[int, ...] = ()
) -> subprocess.Popen:
    """Start `python -m module` with a pipe to this process; its arguments are numbers and `words`.

    The numbers are those of its end of the pipe and of this process.

    It imports from where this process does, uses `threads` threads and inherits the descriptors
    `keep`. Ctrl-C does not reach it. This process's copy of `pipe` is closed, so that the pipe ends
    with the other process.
    """
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    with pipe:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, (pipe.fileno(), os.getpid(), *words))],
            pass_fds=[pipe.fileno(), *keep],
            stdin=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
        )


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel, on Linux, for a signal when the thread that started this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
