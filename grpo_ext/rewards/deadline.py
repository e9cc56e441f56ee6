"""A time limit for code that runs in this process: a timer whose signal raises in the midst of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 0.5  # seconds after which a limit that was swallowed is raised again


class TooLate(BaseException):
    """The time is up. No `Exception`, so that `except Exception` in the code at fault does not swallow it."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise `TooLate` in the block once it has run for `seconds`; None for no limit.

    There is none, either, outside the main thread and where somebody else's timer is running: signals allow no better.
    """
    possible = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if seconds is None or not possible or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def raise_too_late(*_: object) -> None:
        raise TooLate(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, raise_too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def paused() -> Iterator[None]:
    """Stop the clock of the deadline around the block: an import that is cut short leaves its module broken for good."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0) if hasattr(signal, "setitimer") else (0.0, 0.0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)
