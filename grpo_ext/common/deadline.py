"""A time limit for Python code in the main thread, enforced by a timer signal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

REPEAT_INTERVAL = 0.5  # seconds until a swallowed `TooLate` is raised again


class TooLate(BaseException):
    """The time limit has expired.

    A `BaseException`, so that an `except Exception` in the slow code does not swallow it.
    """


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise `TooLate` inside the block once it has run for `seconds`; `None` means no limit.

    The limit has no effect outside the main thread, where signals do not arrive, or while another
    timer is running.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if seconds is None or not in_main_thread or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def raise_too_late(*_: object) -> None:
        raise TooLate(f"it took more than {seconds:.2g} s")

    previous_handler = signal.signal(signal.SIGALRM, raise_too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
