"""Processes that end with the one that started them."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel, on Linux, for a signal when the thread that started this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
