"""Run user code within limits: a deadline, separate RNG states, and no surviving forks."""

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

_before = ExitStack()  # restores the state from before the first of the overlapping blocks
_calls = 0

REPEAT_INTERVAL = 0.5  # seconds until a swallowed `TooLate` is raised again


class TooLate(BaseException):
    """Raised when the time limit of `deadline` has expired.

    It is a `BaseException`, so that an `except Exception` in the slow code does not swallow it.
    """


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Context manager that raises `TooLate` in the block after `seconds`; `None` means no limit.

    The error is raised again every 0.5 s until the block exits, even inside `except` and `finally`.
    The limit has no effect outside the main thread, where signals do not arrive, or if the
    real-time timer of the process is already running.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if seconds is None or not in_main_thread or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def raise_too_late(*_: object) -> None:
        raise TooLate(f"timed out after {seconds:g} s")

    previous_handler = signal.signal(signal.SIGALRM, raise_too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_INTERVAL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


@contextmanager
def preserve_process_state(seed: int) -> Iterator[None]:
    """Context manager that seeds the RNGs, then restores their states and the working directory.

    The RNGs are those of Python and, if already imported, NumPy and torch. Blocks may overlap, as
    in async rewards: only the first block to begin saves the states and sets the seed, and only the
    last block to end restores them.

    Args:
        seed: a 32-bit seed.
    """
    global _calls
    if not _calls:
        with suppress(OSError):  # raised if the directory has been deleted
            _before.callback(os.chdir, os.getcwd())
        for get_state, set_state, set_seed in random_generators():
            _before.callback(set_state, get_state())
            set_seed(seed)
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1
        if not _calls:
            with suppress(OSError):
                _before.close()


def random_generators() -> Iterator[
    tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]
]:
    """Yield the functions (get_state, set_state, set_seed) of each random number generator.

    These are the generators of Python and, if already imported, of NumPy and torch. Those of CUDA
    are included if torch has initialized CUDA.
    """
    yield random.getstate, random.setstate, random.seed
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield numpy.random.get_state, numpy.random.set_state, numpy.random.seed
    torch = sys.modules.get("torch")
    if torch is not None:
        yield torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed
        if torch.cuda.is_initialized():
            yield (
                torch.cuda.get_rng_state_all,
                torch.cuda.set_rng_state_all,
                torch.cuda.manual_seed_all,
            )


@contextmanager
def exit_if_forked() -> Iterator[None]:
    """Context manager that makes a process forked inside the block exit at the end of the block.

    Otherwise, the forked process would continue as a second trainer.
    """
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(0)
