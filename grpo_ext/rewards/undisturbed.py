"""What a reward cannot change for the run around it: the random numbers of training, the working directory, the process."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_before: list[tuple[Callable[[Any], object], Any]] = []  # how things were when the first of the calls under way began
_calls = 0


@contextmanager
def undisturbed(seed: int) -> Iterator[None]:
    """Draw random numbers of Python, numpy and torch from generators seeded by `seed` (32 bits), and leave all as it was.

    Calls may overlap, as those of async rewards do: the first notes how things were, the last puts them back.
    """
    global _calls
    if not _calls:
        with suppress(OSError):  # the directory has been deleted
            _before[:] = [(os.chdir, os.getcwd())]
        for get, put, sow in generators():
            _before.append((put, get()))
            sow(seed)
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1
        while not _calls and _before:
            put, value = _before.pop()
            with suppress(OSError):
                put(value)


def generators() -> Iterator[tuple[Callable[[], Any], Callable[[Any], object], Callable[[int], object]]]:
    """How to get, set and seed the state of each library that is imported."""
    yield random.getstate, random.setstate, random.seed
    if numpy := sys.modules.get("numpy"):
        yield numpy.random.get_state, numpy.random.set_state, numpy.random.seed
    if torch := sys.modules.get("torch"):
        yield torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed
        if torch.cuda.is_initialized():
            yield torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all, torch.cuda.manual_seed_all


@contextmanager
def one_process() -> Iterator[None]:
    """End a process that the block forked off, which would go on as a second trainer or worker."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(0)
