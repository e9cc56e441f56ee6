"""Let SIGTERM end a command as Ctrl-C does, so that what it holds is released."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM  # the exit code that a shell gives


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived.

    As a `KeyboardInterrupt`, it passes through the guards around the code of users.
    """


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` in the context when SIGTERM arrives.

    A handler that the program has installed is kept. Forked processes end as usual. Outside the
    main thread, this context does nothing.
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
    """Leave the block without an error at Ctrl-C, but not at SIGTERM."""
    try:
        yield
    except Terminated:
        raise
    except KeyboardInterrupt:
        pass
