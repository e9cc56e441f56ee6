"""Kills and faults of the benchmarks, in small: nothing is lost that should not be."""

from __future__ import annotations

import pytest
from forked import Forked, run_module

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["kills", "faults"])
def test_nothing_is_lost(name):
    """Kills on one and two ranks; each fault of one rank."""
    process = Forked(run_module, f"benchmarks.{name}", "--quick", "--check")
    assert process.wait(900) == 0, process.printed[-3000:]
