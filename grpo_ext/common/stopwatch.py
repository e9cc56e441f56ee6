"""A stopwatch that adds up the time spent in several blocks of code."""

import time
from types import TracebackType


class Stopwatch:
    """Adds up the seconds spent in its `with` blocks; nested blocks count once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._depth = 0
        self._since = 0.0

    def __enter__(self) -> None:
        if self._depth == 0:
            self._since = time.perf_counter()
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._seconds += time.perf_counter() - self._since

    def take(self) -> float:
        """Return the seconds spent in all blocks that ended since the last call to this method."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds
