"""A run that is killed at any moments, and started again, ends bit for bit as one that was not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hunting import hunt, model
from hypothesis import strategies as st
from runs import check_end, to_its_end, wanted

from benchmarks.fault_runs import start, wait
from benchmarks.kills import train


def the_end_is_the_same(kills: list[tuple[str, float, float]]) -> None:
    """Kill the run again and again, and then let it end.

    Args:
        kills: ("after", seconds, 0), or ("saving", step, seconds that the checkpoint is being written).
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        out = Path(folder) / "run"
        for how, when, delay in kills:
            in_save = (int(when), delay) if how == "saving" else None
            wait(
                start(1, out, lambda saved=in_save: train(model(), out, in_save=saved)),
                when if how == "after" else None,
            )
        to_its_end(out)
        check_end(out)


def test_kills():
    moments = st.floats(0.2, 6.0).map(lambda x: round(x, 2))
    after = st.tuples(st.just("after"), moments, st.just(0.0))
    saving = st.tuples(st.just("saving"), st.integers(1, 16), st.floats(0, 0.06).map(lambda x: round(x, 4)))
    hunt(the_end_is_the_same, wanted, kills=st.lists(st.one_of(after, saving), min_size=1, max_size=4))
