"""The time limit of a benchmark."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grpo_ext.common.termination import terminable

MINUTES = 2.0  # the default time limit


class BudgetSpent(Exception):
    """Raised when a benchmark's time is up, even in the middle of a step."""


class Budget:
    """A time limit that starts when the object is created.

    Args:
        seconds: the length of the budget; unlimited by default.
        clock: a function that returns the current time in seconds, from any starting point.

    Attributes:
        interrupted: whether Ctrl-C has ended the budget.
    """

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic):
        self.seconds = seconds
        self.clock = clock
        self.interrupted = False
        self._begun = clock()

    @property
    def spent(self) -> float:
        """The seconds since the budget was created."""
        return self.clock() - self._begun

    @property
    def left(self) -> float:
        """The seconds that are left; 0 once the time is up or the budget was interrupted."""
        return 0.0 if self.interrupted else max(0.0, self.seconds - self.spent)

    def interrupt(self) -> None:
        """End the budget now."""
        self.interrupted = True

    def check(self, reserve: float = 0.0) -> None:
        """Raise an exception if too little time is left, or if the budget was interrupted.

        After Ctrl-C, the signal handler has already raised `KeyboardInterrupt`. It is raised again
        in case Python discarded it, as it does with exceptions in garbage collector callbacks.

        Raises:
            KeyboardInterrupt: if the budget was interrupted, whatever time is left.
            BudgetSpent: if at most `reserve` seconds are left.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.left <= reserve:
            raise BudgetSpent


@contextmanager
def interruptible(budget: Budget) -> Iterator[None]:
    """Context manager in which Ctrl-C ends a budget and raises `KeyboardInterrupt`.

    SIGTERM raises `Terminated`. Both also work while a trainer runs: a trainer normally handles
    these signals itself, to save a checkpoint at the end of a step, but it does not replace
    handlers that are already installed. Outside the main thread, the context manager does nothing.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        budget.interrupt()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with terminable():
            yield
    finally:
        signal.signal(signal.SIGINT, before)
