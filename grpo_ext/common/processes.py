"""Start helper processes for a run, and end them together with the process that started them."""

import ctypes
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1


def start_beside(
    module: str,
    pipe: Connection,
    *words: Any,
    threads: int,
    keep: tuple[int, ...] = (),
) -> subprocess.Popen:
    """Start and return the process `python -m module PIPE PARENT *words`, with a pipe to this one.

    PIPE is the file descriptor of the new process's end of the pipe, and PARENT is the id of this
    process. The new process gets the same import path and an empty standard input. It has its own
    process group, so Ctrl-C does not reach it. `pipe` is closed in this process, so that the pipe
    closes when the new process ends.

    Args:
        module: the module to run.
        pipe: the new process's end of the pipe.
        words: further command-line arguments, converted to strings.
        threads: the number of threads that the new process may use (`OMP_NUM_THREADS`).
        keep: further file descriptors that the new process inherits.
    """
    folders = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "OMP_NUM_THREADS": str(threads),
    }
    with pipe:
        arguments = [pipe.fileno(), os.getpid(), *words]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *map(str, arguments)],
            pass_fds=[pipe.fileno(), *keep],
            stdin=subprocess.DEVNULL,
            process_group=0,
            env=environment,
        )


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """On Linux, have the kernel send this process a signal when the thread that started it ends.

    On any system, exit at once with code 1 if the parent process has already ended.

    Args:
        parent: the id of the parent process.
        number: the number of the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)
