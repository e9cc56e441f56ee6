"""Time limits for rewards that run in this process.

Coroutines run in a separate event loop. Functions are interrupted by the timer of
`common.user_code`, which `paused` suspends.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from grpo_ext.common.user_code import TooLate

RESPONSE_LIMIT = 1.0  # seconds after which a loop that does not respond counts as blocked

# Keyed by process id, since a forked process does not have the loop's thread.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


async def in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Run a coroutine in the rewards' event loop and return its result.

    Args:
        coroutine: the coroutine to run.
        seconds: the time limit; `None` means no limit.

    Raises:
        TooLate: after `seconds`, even if the coroutine blocks its loop.
    """
    loop = _loop()
    future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    try:
        return await asyncio.wait_for(future, seconds)
    except TimeoutError:
        await asyncio.to_thread(_leave_if_blocked, loop)
        raise TooLate(f"it took more than {seconds:.2g} s") from None


def waiting(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Callable[[], Any]:
    """Start a coroutine in the loop of `in_time`; return a function that waits for its result.

    The function raises `TooLate` once `seconds` have passed since the coroutine was started.
    """
    loop = _loop()
    end = time.monotonic() + seconds
    future = asyncio.run_coroutine_threadsafe(_without_exits(coroutine), loop)

    def wait() -> Any:
        with paused():  # a deadline around this call would leave the coroutine running
            try:
                return future.result(max(0.0, end - time.monotonic()))
            except TimeoutError:
                if future.done():  # the coroutine itself raised TimeoutError
                    raise
                future.cancel()
                _leave_if_blocked(loop)
                raise TooLate(f"it took more than {seconds:.2g} s") from None

    return wait


async def _without_exits(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine; turn `SystemExit`, which would end the loop's thread, into an error."""
    try:
        return await coroutine
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from None


def _loop() -> asyncio.AbstractEventLoop:
    """Return this process's event loop, and start it if there is none.

    All calls use the same loop, so that they can share sessions and semaphores.
    """
    loop = _loops.get(os.getpid())
    if loop is None:
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="async-rewards", daemon=True).start()
    return loop


def _leave_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Abandon the loop if it does not respond, so that the next call starts another one.

    The thread of a blocked loop cannot be stopped.
    """
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    if not answered.wait(RESPONSE_LIMIT) and _loops.get(os.getpid()) is loop:
        del _loops[os.getpid()]


@contextmanager
def paused() -> Iterator[None]:
    """Pause the timer of the surrounding deadline during the block.

    Use it around imports: an import that is interrupted leaves a broken module.
    """
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)
