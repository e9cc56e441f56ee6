"""Make several requests at once, in threads that do not delay the end of the process.

A `ThreadPoolExecutor` is not used, because Python waits for its threads when the process exits,
even if the server that they are waiting for hangs.
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
    """Return `function(item)` for each of `items`, computed by up to `max_threads` daemon threads.

    If a call raises an exception, calls that have not begun are skipped, and the exception is
    raised once the running calls have ended.
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
