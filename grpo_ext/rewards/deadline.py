"""Time limits for code in this process: a timer whose signal raises an exception, and a separate event loop for coroutines."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.5  # seconds until a swallowed `TooLate` is raised again
ANSWER = 1.0  # seconds in which a loop answers unless it is blocked

_loops: dict[
    int, asyncio.AbstractEventLoop
] = {}  # by process: a fork does not have the loop's thread


class TooLate(BaseException):
    """The time is up. It is a `BaseException`, so that `except Exception` in the slow code does not swallow it."""


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise `TooLate` in the block once it has run for `seconds`; None for no limit.

    There is no limit outside the main thread, where signals do not arrive, or while another timer runs.
    """
    elsewhere = threading.current_thread() is not threading.main_thread()
    if seconds is None or elsewhere or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def raise_too_late(*_: object) -> None:
        raise TooLate(f"it took more than {seconds:.2g} s")

    before = signal.signal(signal.SIGALRM, raise_too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Run `coroutine` in another loop and return its result; `TooLate` after `seconds`, even if it blocks that loop."""
    loop = _loop()
    future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    try:
        return await asyncio.wait_for(future, seconds)
    except TimeoutError:
        await asyncio.to_thread(_leave_if_blocked, loop)
        raise TooLate(f"it took more than {seconds:.2g} s") from None


def waiting(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Callable[[], Any]:
    """Begin a coroutine in the loop of `in_time`; return a function that waits for it, or raises `TooLate` after `seconds`."""
    loop, end = _loop(), time.monotonic() + seconds
    future = asyncio.run_coroutine_threadsafe(_without_exits(coroutine), loop)

    def wait() -> Any:
        with paused():  # a deadline around it would leave the coroutine running
            try:
                return future.result(max(0.0, end - time.monotonic()))
            except TimeoutError:
                if future.done():  # the coroutine's own
                    raise
                future.cancel()
                _leave_if_blocked(loop)
                raise TooLate(f"it took more than {seconds:.2g} s") from None

    return wait


async def _without_exits(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Turn `sys.exit`, which would end the loop's thread, into an error."""
    try:
        return await coroutine
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from None


def _loop() -> asyncio.AbstractEventLoop:
    """This process's loop, one for all calls, which can share sessions and semaphores."""
    if (loop := _loops.get(os.getpid())) is None:
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="async-rewards", daemon=True).start()
    return loop


def _leave_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Let the next call start another loop if this one does not answer; nothing can end its thread."""
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    if not answered.wait(ANSWER) and _loops.get(os.getpid()) is loop:
        del _loops[os.getpid()]


@contextmanager
def paused() -> Iterator[None]:
    """Stop the clock of the deadline during the block: an import that is cut short leaves a broken module."""
    left, again = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left, again)
