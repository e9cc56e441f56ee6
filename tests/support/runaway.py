"""A bound that only work which grows out of hand misses.

What stays within it takes a hundredth of it on an idle machine.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_runaway(seconds: float = 20.0) -> Iterator[None]:
    """Assert that the block took less of this process's time than that.

    Other programs of the machine do not count.
    """
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds
