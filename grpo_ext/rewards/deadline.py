"""Time limits for rewards that run in this process.

Coroutines run in a separate event loop. Functions are interrupted by a timer (see
`common.user_code.deadline`), which `paused` suspends.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from grpo_ext.common.user_code import TooLate

RESPONSE_LIMIT = 1.0  # seconds after which a loop that does not respond counts as blocked

USER_CODE = "async-rewards"  # name of the event loop that runs user code
# Keyed by process id and name, since a forked process does not have the loop's thread.
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}


async def in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """Run a coroutine in the event loop for user code and return its result.

    A coroutine that exceeds the time limit is canceled.

    Args:
        coroutine: the coroutine to run.
        seconds: the time limit; `None` means no limit.

    Raises:
        TooLate: after `seconds`, or up to `RESPONSE_LIMIT` seconds later if the coroutine blocks
            its loop.
        RuntimeError: if the coroutine raises `SystemExit`. All other exceptions of the coroutine
            are passed on.
    """
    loop = event_loop(USER_CODE)
    running = asyncio.run_coroutine_threadsafe(_without_exits(coroutine), loop)
    future = asyncio.wrap_future(running)
    try:
        return await asyncio.wait_for(future, seconds)
    except TimeoutError:
        if future.done() and not future.cancelled():  # the coroutine itself raised TimeoutError
            raise
        await asyncio.to_thread(_leave_if_blocked, loop)
        raise TooLate(f"timed out after {seconds:g} s") from None


async def _without_exits(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine, raising `RuntimeError` instead of `SystemExit`.

    `SystemExit` would end the thread of the event loop.
    """
    try:
        return await coroutine
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from None


def event_loop(name: str) -> asyncio.AbstractEventLoop:
    """Return this process's event loop named `name`; start it in a daemon thread if needed.

    All user code runs in one loop, so that it can share sessions and semaphores.
    """
    key = (os.getpid(), name)
    loop = _loops.get(key)
    if loop is None:
        loop = _loops[key] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
    return loop


def _leave_if_blocked(loop: asyncio.AbstractEventLoop) -> None:
    """Abandon the loop for user code if it does not respond within `RESPONSE_LIMIT` seconds.

    The next call of `event_loop` then starts a new loop. The thread of an abandoned loop keeps
    running, because it cannot be stopped.
    """
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    key = (os.getpid(), USER_CODE)
    if not answered.wait(RESPONSE_LIMIT) and _loops.get(key) is loop:
        del _loops[key]


@contextmanager
def paused() -> Iterator[None]:
    """Context manager that pauses the timer of the surrounding `deadline`.

    Use it around imports, because an interrupted import leaves a broken module.
    """
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)
