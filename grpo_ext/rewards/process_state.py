"""Protects a run from its rewards: its random numbers, its working directory and its process."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

_before = ExitStack()  # restores the state before the first running call
_calls = 0


@contextmanager
def preserve_process_state(seed: int) -> Iterator[None]:
    """Seed the generators of Python, numpy and torch with `seed` (32 bits) in the block, and restore their state after it.

    Calls may overlap, as those of async rewards do: the first saves the state and the last restores it.
    """
    global _calls
    if not _calls:
        with suppress(OSError):  # the directory has been deleted
            _before.callback(os.chdir, os.getcwd())
        for get, put, seed_with in generators():
            _before.callback(put, get())
            seed_with(seed)
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1
        if not _calls:
            with suppress(OSError):
                _before.close()


def generators() -> Iterator[
    tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]
]:
    """Yield how to get, set and seed the state of each imported library."""
    yield random.getstate, random.setstate, random.seed
    if numpy := sys.modules.get("numpy"):
        yield numpy.random.get_state, numpy.random.set_state, numpy.random.seed
    if torch := sys.modules.get("torch"):
        yield torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed
        if torch.cuda.is_initialized():
            yield (
                torch.cuda.get_rng_state_all,
                torch.cuda.set_rng_state_all,
                torch.cuda.manual_seed_all,
            )


@contextmanager
def exit_if_forked() -> Iterator[None]:
    """End any process that the block forks, which would otherwise go on as a second trainer or worker."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(0)
