"""Targets of make whose tests need a package say so when it could not be installed."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.places import REPO

# In place of the environment's Python: has no package, and passes all tests or fails them.
PYTHON = """#!/bin/sh
case "$*" in *pytest*) exit "$STATUS";; *) exit 1;; esac
"""


@pytest.mark.parametrize("target", ["suite", "gym", "real", "vllm"])
def test_the_last_line_says_that_tests_were_skipped(target, tmp_path):
    for path in (tmp_path / "python", tmp_path / "bin" / "python"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(PYTHON)
        path.chmod(0o755)
    ready = tmp_path / "ready" / ".ready"
    for path in (ready, tmp_path / ".ready"):
        path.parent.mkdir(exist_ok=True)
        path.touch()  # newer than what it depends on, so that nothing is set up
    words = ["make", "-s", target, f"READY={ready}", f"BIN={tmp_path}", f"VLLM={tmp_path}"]
    for status in (0, 1):
        environment = {"PATH": "/usr/bin:/bin", "STATUS": str(status)}
        done = subprocess.run(
            words, cwd=REPO, env=environment, check=False, capture_output=True, text=True
        )
        assert (done.returncode == 0) == (status == 0)
        last = done.stdout.strip().rpartition("\n")[2]
        assert ("SKIPPED all tests" in last) == (status == 0)
