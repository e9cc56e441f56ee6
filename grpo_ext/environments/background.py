"""Run an environment's code in the background, within a time limit.

Async code runs in the event loop that also runs async rewards. Synchronous code runs in threads if
the recipe sets `threads`. A second event loop, which never runs user code, enforces the time
limits, so a caller gets its result or `TooLate` in time even if the code blocks.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any

from grpo_ext.common.user_code import TooLate, exit_if_forked
from grpo_ext.rewards.deadline import event_loop, in_time, paused

Work = Callable[[], Any]
TIMER = "environment-timer"  # name of the event loop that measures the time


def start_coroutine(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Future[Any]:
    """Start a coroutine in the background, and return a future with its result.

    The future raises `TooLate` if the coroutine takes longer than `seconds`.
    """
    return asyncio.run_coroutine_threadsafe(in_time(coroutine, seconds), event_loop(TIMER))


def result_of(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Run a coroutine and return its result; raise `TooLate` if it takes more than `seconds`."""
    with paused():  # a deadline around this call would leave the coroutine running
        return start_coroutine(coroutine, seconds).result()


class ThreadPool:
    """A pool that runs synchronous code in at most `count` threads at a time.

    A thread whose code takes too long is abandoned, and no longer counts toward this limit. All
    threads are daemons, so code that hangs does not delay the end of the run.
    """

    def __init__(self, count: int):
        self._places = asyncio.Semaphore(count)

    def start(self, works: Sequence[Work], seconds: float) -> list[Future[Any]]:
        """Start functions, which run one after another in a thread, and return a future for each.

        Args:
            works: the functions. If a function returns a coroutine, the coroutine is awaited.
            seconds: time limit for all functions together, counted from when a thread is free.

        Returns:
            The future of each function. A future raises the error of its function, `TooLate` if the
            function has not finished at the time limit, or `RuntimeError` if no thread can be
            started.
        """
        results: list[Future[Any]] = [Future() for _ in works]
        running = self._run(works, results, seconds)
        asyncio.run_coroutine_threadsafe(running, event_loop(TIMER))
        return results

    async def _run(
        self, works: Sequence[Work], results: Sequence[Future[Any]], seconds: float
    ) -> None:
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        returned: list[Future[Any]] = [Future() for _ in works]

        def run() -> None:
            with exit_if_forked():
                call_all(works, returned)
            loop.call_soon_threadsafe(finished.set)

        async with self._places:
            end = time.monotonic() + seconds
            try:
                Thread(target=run, name="environment", daemon=True).start()
            except RuntimeError as error:  # the system allows no further thread
                for result in results:
                    result.set_exception(error)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), seconds)
        pairs = zip(results, returned, strict=True)
        await asyncio.gather(*(settle(result, value, end) for result, value in pairs))


def call_all(works: Sequence[Work], returned: Sequence[Future[Any]]) -> None:
    """Call each function in turn and set its future; stop at the first canceled future."""
    for work, future in zip(works, returned, strict=True):
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # also `SystemExit`, which would end only the thread
            future.set_exception(error)


async def settle(result: Future[Any], returned: Future[Any], end: float) -> None:
    """Set a future to the result or error of user code; if the code returned a coroutine, await it.

    Args:
        result: the future to set.
        returned: a future with the value that the code returned. If it is not done, `result` gets
            the error `TooLate`, and code that has not been started yet is canceled.
        end: the time limit of the coroutine, as a value of `time.monotonic`; `result` gets the
            error `TooLate` if the coroutine takes longer.
    """
    try:
        if returned.cancel() or not returned.done():
            raise TooLate("the time limit was reached")
        value = returned.result()
        if inspect.iscoroutine(value):
            value = await in_time(value, max(end - time.monotonic(), 0.0))
    except BaseException as error:
        result.set_exception(error)
    else:
        result.set_result(value)
