"""Let SIGTERM end a command as Ctrl-C does, so that its resources are released."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM  # the exit code that a shell gives


class Terminated(KeyboardInterrupt):
    """Raised when SIGTERM arrives within `terminable`.

    It derives from `KeyboardInterrupt`, so that code which catches the errors of user code does not
    swallow it.
    """


@contextmanager
def terminable() -> Iterator[None]:
    """Context manager in which SIGTERM raises `Terminated` instead of ending the process.

    A process forked in the context is ended by SIGTERM as usual. The context does nothing outside
    the main thread, or if the program has installed a handler or ignores SIGTERM.
    """
    own_process = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own_process:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        raise Terminated

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Context manager that suppresses the error raised by Ctrl-C, but not the one for SIGTERM."""
    try:
        yield
    except Terminated:
        raise
    except KeyboardInterrupt:
        pass
