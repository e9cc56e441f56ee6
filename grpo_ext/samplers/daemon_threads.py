"""Make several requests at once in threads that do not delay the end of the process.

The threads of a `ThreadPoolExecutor` would: Python waits for them at its end, even for a server
that hangs.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_daemons(
    function: Callable[[Item], Result], items: Sequence[Item], max_threads: int
) -> list[Result]:
    """Return `function(item)` for each item, computed by up to `max_threads` daemon threads.

    If a call raises an exception, those that have not begun fail with it as well, and it is raised.
    """
    futures: list[Future[Result]] = [Future() for _ in items]
    waiting: SimpleQueue[tuple[Future[Result], Item]] = SimpleQueue()
    for pair in zip(futures, items, strict=True):
        waiting.put(pair)
    errors: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                future, item = waiting.get_nowait()
            except Empty:
                return
            if errors:
                future.set_exception(errors[0])
                continue
            try:
                future.set_result(function(item))
            except BaseException as error:  # the caller raises it
                errors.append(error)
                future.set_exception(error)

    for _ in range(min(max_threads, len(items))):
        Thread(target=work, daemon=True).start()
    wait(futures)
    return [future.result() for future in futures]
