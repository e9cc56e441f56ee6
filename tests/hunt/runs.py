"""The run that hunts break: two epochs with everything on that keeps state, and what it comes to undisturbed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from hunting import held, model

from benchmarks.fault_runs import KillAt, left_by, lost, start, wait
from benchmarks.kills import train


def to_its_end(out: Path) -> None:
    """Begin the run in `out`, or go on with it."""
    codes = wait(start(1, out, lambda: train(model(), out)))
    assert codes == [0], last_words(out)


def last_words(out: Path) -> str:
    said = (out / "rank-0.log").read_text(errors="replace").strip()
    return f"{said.splitlines()[-1]}\n{said[-3000:]}"


@cache
def wanted() -> dict[str, Any]:
    return left_by(held("whole", to_its_end))


def cut_off() -> Path:
    """The run killed in step 7, with the checkpoints of steps 4, 5 and 6."""
    return held("cut", lambda out: wait(start(1, out, lambda: train(model(), out, kill=KillAt(7)))))


def check_end(out: Path) -> None:
    different = lost(left_by(out), wanted())
    assert not different, f"another end: {', '.join(different)}"
