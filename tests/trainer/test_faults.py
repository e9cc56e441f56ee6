"""Kills and faults of the benchmarks, in small: nothing is lost that should not be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import REPO

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["kills", "faults"])
def test_nothing_is_lost(name):
    """Kills on one and two ranks; each fault of one rank."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
