"""The time that a benchmark may take."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grpo_ext.common.termination import terminable

MINUTES = 2.0  # the default length of a budget


class BudgetSpent(Exception):
    """Raised when the time of a benchmark is over, even in the middle of a step."""


class Budget:
    """A time limit that starts when the object is created.

    Args:
        seconds: the length of the budget; unlimited by default.
        clock: a function that returns the current time in seconds.

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
        """The seconds that are left, at least 0; 0 after an interruption."""
        return 0.0 if self.interrupted else max(0.0, self.seconds - self.spent)

    def interrupt(self) -> None:
        """End the budget now."""
        self.interrupted = True

    def check(self, reserve: float = 0.0) -> None:
        """Raise `BudgetSpent` if no more than `reserve` seconds are left.

        After an interruption, raise `KeyboardInterrupt`, whatever time is left. The signal handler
        has already raised it, but Python discards exceptions in callbacks of the garbage collector.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        if self.left <= reserve:
            raise BudgetSpent


@contextmanager
def interruptible(budget: Budget) -> Iterator[None]:
    """Let Ctrl-C end a budget and raise `KeyboardInterrupt`, even while a trainer runs.

    SIGTERM raises `Terminated`. A trainer normally installs its own handlers, which save a
    checkpoint at the end of a step; it does not replace handlers that the program has installed.
    Outside the main thread, this context does nothing.
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
