"""A run that is killed at any moments, and started again, ends bit for bit as one that was not."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.fault_runs import left_by, lost, start, wait
from tests.support.hunting import LONG, held, hunt, model
from tests.support.killed_runs import SETTINGS, train


def to_its_end(out: Path, name: str = "turns") -> None:
    """Begin the run with everything on that keeps state, or go on with it."""
    codes = wait(start(1, out, lambda: train(model(), out, **SETTINGS[name])))
    said = (out / "rank-0.log").read_text(errors="replace").strip()
    assert codes == [0], f"{said.splitlines()[-1]}\n{said[-3000:]}"


@cache
def wanted(name: str = "turns") -> dict[str, Any]:
    """What it comes to where nothing happens to it."""
    return left_by(held(f"whole-{name}", lambda out: to_its_end(out, name)))


def check_end(out: Path, name: str = "turns") -> None:
    different = lost(left_by(out), wanted(name))
    assert not different, f"another end: {', '.join(different)}"


def the_end_is_the_same(kills: list[tuple[str, float, float]], name: str = "turns") -> None:
    """Kill the run again and again, and then let it end.

    Args:
        kills: ("after", seconds, 0), ("saving", step, seconds that its checkpoint is being
            written), or of a sampler process ("sampler", number of its request, seconds after
            that).
        name: of the settings.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        out = Path(folder) / "run"
        for how, when, delay in kills:
            at: dict[str, Any] = {"in_save": (int(when), delay)} if how == "saving" else {}
            at |= {"strikes": {int(when): delay}} if how == "sampler" else {}
            body = partial(train, model(), out, **at, **SETTINGS[name])
            wait(start(1, out, body), when if how == "after" else None)
        to_its_end(out, name)
        check_end(out, name)


def test_kills():
    after = st.tuples(st.just("after"), st.integers(20, 600).map(lambda n: n / 100), st.just(0.0))
    saving = st.tuples(
        st.just("saving"), st.integers(1, 16), st.integers(0, 60).map(lambda n: n / 1000)
    )
    hunt(
        the_end_is_the_same,
        wanted,
        kills=st.lists(st.one_of(after, saving), min_size=1, max_size=4),
    )


@pytest.mark.skipif(not LONG, reason="it takes a longer hunt")
def test_kills_of_the_overlap():
    after = st.tuples(st.just("after"), st.integers(20, 1200).map(lambda n: n / 100), st.just(0.0))
    saving = st.tuples(
        st.just("saving"), st.integers(1, 16), st.integers(0, 60).map(lambda n: n / 1000)
    )
    sampler = st.tuples(
        st.just("sampler"), st.integers(1, 5), st.integers(0, 100).map(lambda n: n / 1000)
    )
    hunt(
        the_end_is_the_same,
        partial(wanted, "overlap"),
        kills=st.lists(st.one_of(after, saving, sampler), min_size=1, max_size=3),
        name=st.sampled_from(sorted(name for name in SETTINGS if name != "turns")),
    )
