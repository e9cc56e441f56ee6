"""Kills and faults of the benchmarks, in small: nothing is lost that should not be."""

from __future__ import annotations

import pytest

from tests.support.forked import Forked, run_module

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sampler_forks")]


OVERLAP = (
    "kills",
    "--settings",
    "each-step",
    "--kinds",
    "moments",
    "sampler",
    "--moments",
    "1",
    "--ranks",
    "1",
)


@pytest.mark.parametrize(
    "words",
    [("kills", "--settings", "turns"), OVERLAP, ("faults",)],
    ids=["kills", "overlap", "faults"],
)
def test_nothing_is_lost(words):
    """Kills on one and two ranks.

    With a sampler process one of the trainer and one of that; each fault of one rank.
    """
    process = Forked(run_module, f"benchmarks.{words[0]}", *words[1:], "--quick", "--check")
    assert process.wait() == 0, process.printed[-3000:]
