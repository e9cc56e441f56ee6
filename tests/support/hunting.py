"""Random input for as long as there is time, and what fails as a test that is ready to paste.

A hunt is a function that raises where something is wrong with its arguments, all of them literals,
and strategies for these. `make hunt` runs `hunt_*.py`; `make test` does not see them.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.utils.logging import disable_progress_bar

from tests.support.fault_runs import build_start, quiet, start, wait

TOTAL = float(os.environ.get("HUNT_SECONDS", "600"))
LONG = TOTAL >= 300  # a sampler process takes seconds to start: too long for a short hunt
# Half of the time is for the trainer (`hunt_trainer`), the other half for each of the others alike.
HALF = TOTAL / 2
SECONDS = HALF / (11 if LONG else 10)
SEED = int(os.environ.get("HUNT_SEED", "0"))
FOLDER = Path(os.environ.get("HUNT_FOLDER", "hunted"))  # of the tests that are written
FEW = settings(
    max_examples=25,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
TEST = '''"""Found by `make hunt HUNT_SEED={seed}`.

{fault}
"""

from tests.hunt.{module} import {name}


def test_{stem}():
    {name}({arguments})
'''


def hunt(
    check: Callable[..., None],
    prepare: Callable[[], Any] = lambda: None,
    seconds: float = SECONDS,
    smaller: Callable[[Any], Iterator[Any]] | None = None,
    **strategies: Any,
) -> None:
    """Call `check` with random arguments until its share of the time is up; fail with the smallest
    that failed, one a fault.

    Args:
        prepare: what `check` needs; where it takes longer than the share, nothing is hunted for.
        seconds: the share. smaller: yields smaller values of the only argument, which are tried
        after hypothesis has shrunk it. strategies: of the arguments, by name.
    """
    one = Hunt(check, seconds, smaller)
    prepare()
    if time.monotonic() > one.end:
        pytest.skip(f"to prepare took more than the {seconds:.0f} s there are: raise HUNT_SECONDS")
    for chunk in itertools.count():
        one.search(st.fixed_dictionaries(strategies), 1000 * SEED + chunk)
        if time.monotonic() > one.end:
            break
    print(f"\n{check.__name__}: {one.tried} tried with HUNT_SEED={SEED}, {len(one.found)} faults")
    if one.found:
        pytest.fail(
            "\n\n".join(written(check, *fault) for fault in one.found.items()), pytrace=False
        )


class Hunt:
    """What has been found so far, by fault: the smallest arguments."""

    def __init__(
        self,
        check: Callable[..., None],
        seconds: float,
        smaller: Callable[[Any], Iterator[Any]] | None,
    ):
        self.check, self.seconds, self.smaller, self.tried = check, seconds, smaller, 0
        self.end = time.monotonic() + seconds
        self.found: dict[str, dict[str, Any]] = {}

    def search(self, arguments: st.SearchStrategy, seed: int) -> None:
        """A few random arguments; the first new fault is shrunk."""
        self.limit, self.hunted = self.end, None
        try:
            hypothesis.seed(seed)(FEW(given(arguments)(self.attempt)))()
        except Exception:  # the fault, or that it was no longer looked at
            if not self.hunted:
                raise
            if self.smaller is not None:
                self.reduce(self.hunted)

    def reduce(self, fault: str) -> None:
        """Replace the argument that failed by smaller ones, as long as these have the same fault
        and there is time.
        """
        assert self.smaller is not None
        end = time.monotonic() + max(self.seconds / 4, 20)
        [name] = self.found[fault]
        tried: list[Any] = []
        while time.monotonic() < end:
            left = (x for x in self.smaller(self.found[fault][name]) if x not in tried)
            candidate = next(left, None)
            if candidate is None:
                break
            tried.append(candidate)
            try:
                self.check(**{name: candidate})
            except Exception as error:
                if fault_of(error) == fault:
                    self.found[fault] = {name: candidate}

    def attempt(self, arguments: dict[str, Any]) -> None:
        if time.monotonic() > self.limit:
            return
        self.tried += 1
        try:
            self.check(**arguments)
        except Exception as error:
            fault = fault_of(error)
            if fault != self.hunted and (self.hunted or fault in self.found):
                return  # told already, or for a later search
            if not self.hunted:
                print(f"\nfound: {fault}", flush=True)
                self.hunted, self.limit = (
                    fault,
                    time.monotonic() + max(self.seconds / 4, 20),
                )  # to shrink it
            self.found[fault] = arguments
            raise


def fault_of(error: Exception) -> str:
    """What went wrong, without the figures and names that differ from one input to the next."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return (
        f"{type(error).__name__}: "
        + re.sub(r"\d[\d.e+-]*|'[^']*'|\"[^\"]*\"|/\S+", "_", lines[0])[:160]
    )


def written(check: Callable[..., None], fault: str, arguments: dict[str, Any]) -> str:
    """Write a test of what was found; what to say about it."""
    stem = f"hunted_{check.__name__}_{hashlib.sha256(fault.encode()).hexdigest()[:6]}"
    given_as = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"test_{stem}.py"
    names = {
        "module": check.__module__,
        "name": check.__name__,
        "stem": stem,
        "arguments": given_as,
    }
    told = fault.replace("\\", "\\\\").replace('"""', "'''")
    path.write_text(
        TEST.format(seed=SEED, fault=told, **names), encoding="utf-8", errors="backslashreplace"
    )
    return f"{fault}\n    {check.__name__}({given_as[:1000]})\n    as a test: {path}"


def in_child(body: Callable[[], None], seconds: int = 60, gibibytes: float = 4.0) -> str:
    """Run `body` in a fork of this process; what it printed.

    Raises:
        AssertionError: with the last line first, where it raised, or took more seconds of a
            processor, or more memory beside what this process has.
    """

    def limited() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(
            resource.RLIMIT_AS, (pages * resource.getpagesize() + int(gibibytes * 2**30),) * 2
        )
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        body()

    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        [code] = wait(start(1, Path(folder), limited))
        said = (Path(folder) / "rank-0.log").read_text(errors="replace")
    lines = ["", *said.strip().splitlines()]
    last = next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Mismatch)\b", line)),
        lines[-1],
    )
    assert code == 0, f"{last if code > 0 else f'ended by signal {-code}'}\n{said[-3000:]}"
    return said


_held = tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-")


def held(name: str, make: Callable[[Path], Any]) -> Path:
    """A folder that lives as long as this process, made on its first use."""
    path = Path(_held.name) / name
    if not path.exists():
        make(path)
    return path


def model() -> Path:
    """An untrained model of 0.1 million parameters with its tokenizer."""
    quiet()
    disable_progress_bar()
    logging.disable(logging.WARNING)
    return held("model", build_start)
