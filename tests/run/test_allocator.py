"""TBB's allocator: in training processes on a CPU, and not in the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from grpo_ext.run import allocator
from grpo_ext.run.allocator import allocator_environment, allocator_libraries
from grpo_ext.run.launch import launch_command
from tests.support.places import REPO

needs_tbb = pytest.mark.skipif(
    allocator_libraries() is None, reason="needs TBB's allocator: pip install --no-deps tbb"
)

IS_LOADED = "print('libtbbmalloc_proxy' in open('/proc/self/maps').read())"
STARTS_A_CHILD = f"""
import subprocess, sys
from grpo_ext.run.allocator import keep_allocator_from_children

keep_allocator_from_children()
{IS_LOADED}
sys.stdout.flush()
subprocess.run([sys.executable, "-c", {IS_LOADED!r}], check=True)
"""


@needs_tbb
def test_a_process_uses_it_and_its_children_do_not(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    out = subprocess.run(
        [sys.executable, "-c", STARTS_A_CHILD],
        env={**os.environ, **allocator_environment()},
        capture_output=True,
        text=True,
        cwd=REPO,
        check=True,
    )
    assert out.stdout.split() == ["True", "False"]
    assert out.stderr == ""


@needs_tbb
def test_only_runs_on_a_cpu_use_it(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    _, environment = launch_command("grpo_ext.train", [], "cpu")
    assert environment["LD_PRELOAD"] == allocator_libraries()
    _, environment = launch_command("grpo_ext.train", [], "zero3")
    assert environment == {}


def test_a_users_choice_is_kept(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libmine.so")
    assert allocator_environment() == {}
    allocator.keep_allocator_from_children()
    assert os.environ["LD_PRELOAD"] == "libmine.so"


def test_without_the_package_nothing_is_set(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(allocator, "PACKAGE", "no-such-package")
    assert allocator_libraries() is None
    assert allocator_environment() == {}
    allocator.keep_allocator_from_children()
