"""A run that is killed at any moments, and started again, ends bit for bit as one that was not."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from hunting import held, hunt, model
from hypothesis import strategies as st

from benchmarks.fault_runs import left_by, lost, start, wait
from benchmarks.kills import train


def to_its_end(out: Path) -> None:
    """Begin the run of two epochs with everything on that keeps state, or go on with it."""
    codes = wait(start(1, out, lambda: train(model(), out)))
    said = (out / "rank-0.log").read_text(errors="replace").strip()
    assert codes == [0], f"{said.splitlines()[-1]}\n{said[-3000:]}"


@cache
def wanted() -> dict[str, Any]:
    """What it comes to where nothing happens to it."""
    return left_by(held("whole", to_its_end))


def check_end(out: Path) -> None:
    different = lost(left_by(out), wanted())
    assert not different, f"another end: {', '.join(different)}"


def the_end_is_the_same(kills: list[tuple[str, float, float]]) -> None:
    """Kill the run again and again, and then let it end.

    Args:
        kills: ("after", seconds, 0), or ("saving", step, seconds that its checkpoint is being written).
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        out = Path(folder) / "run"
        for how, when, delay in kills:
            in_save, limit = ((int(when), delay), None) if how == "saving" else (None, when)
            wait(start(1, out, lambda saved=in_save: train(model(), out, in_save=saved)), limit)
        to_its_end(out)
        check_end(out)


def test_kills():
    after = st.tuples(st.just("after"), st.integers(20, 600).map(lambda n: n / 100), st.just(0.0))
    saving = st.tuples(st.just("saving"), st.integers(1, 16), st.integers(0, 60).map(lambda n: n / 1000))
    hunt(the_end_is_the_same, wanted, kills=st.lists(st.one_of(after, saving), min_size=1, max_size=4))
