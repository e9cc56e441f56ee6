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
    """Draw random numbers from generators of their own, seeded by `seed` (32 bits), and leave all as it was.

    Those of Python, numpy and torch, on the CPU and CUDA. Calls may overlap, as those of async rewards do: the first notes how
    things were, the last puts them back.
    """
    global _calls
    if not _calls:
        _before[:] = state()
        seed_all(seed)
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1
        if not _calls:
            for put_back, value in _before:
                with suppress(OSError):  # the directory is gone
                    put_back(value)


def state() -> list[tuple[Callable[[Any], object], Any]]:
    """How things are, each with the function that puts it back. A library that nobody has imported has no state."""
    found: list[tuple[Callable[[Any], object], Any]] = [(random.setstate, random.getstate())]
    with suppress(OSError):
        found.append((os.chdir, os.getcwd()))
    if numpy := sys.modules.get("numpy"):
        found.append((numpy.random.set_state, numpy.random.get_state()))
    if torch := sys.modules.get("torch"):
        found.append((torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_initialized():
            found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found


def seed_all(seed: int) -> None:
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextmanager
def one_process() -> Iterator[None]:
    """End a process that the block forked off, which would go on as a second trainer or worker."""
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            os._exit(0)
