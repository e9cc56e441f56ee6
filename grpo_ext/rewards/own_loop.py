"""The event loop of async rewards, in a thread of its own: one that blocks it is left behind with it."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

ANSWER = 1.0  # seconds in which a loop that is not blocked answers

_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a thread does not follow into a fork


async def in_time(coroutine: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
    """What `coroutine` returns in the loop of rewards; `TimeoutError` after `seconds`, even where it blocks."""
    if (loop := _loops.get(os.getpid())) is None:  # one for all, which can share sessions and semaphores
        loop = _loops[os.getpid()] = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="async-rewards", daemon=True).start()
    future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))
    try:
        return await asyncio.wait_for(future, seconds)
    except TimeoutError:
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        if not await asyncio.to_thread(answered.wait, ANSWER) and _loops.get(os.getpid()) is loop:
            del _loops[os.getpid()]  # nothing can end its thread, and the next call starts another
        raise TimeoutError(f"it took more than {seconds:g} s") from None
