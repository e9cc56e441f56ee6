"""Whether processes of other programs still run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

from tests.support.forked import LIMIT


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, at most for the limit of every test."""
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(pids: Iterable[int]) -> bool:
    """Wait until none of these processes runs any more, and return True."""
    pids = list(pids)
    wait_until(lambda: not any(map(alive, pids)))
    return True
