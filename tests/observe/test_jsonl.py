"""Logs of JSON lines: nothing half, nothing twice, nothing that is no JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.observe.jsonl import JsonLines, encoded, parts, read
from tests.support.forked import LIMIT
from tests.support.places import REPO

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def strict(line: bytes):
    """As a reader that knows only JSON's own numbers."""

    def refuse(name):
        raise AssertionError(name)

    return json.loads(line, parse_constant=refuse)


def without_odd_numbers(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: without_odd_numbers(part) for key, part in value.items()}
    return [without_odd_numbers(part) for part in value] if isinstance(value, list) else value


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda key: key != "not_finite"), VALUES, max_size=4
    )
)
def test_a_line_is_one_line_of_strict_json_and_gives_the_row_back(row):
    line = encoded(row)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    found = strict(line)
    found.pop("not_finite", None)
    assert found == without_odd_numbers(row)


def test_what_was_not_finite_is_told_by_its_place():
    row = {"step": 3, "loss": math.nan, "rewards": {"a": -math.inf, "b": 1.0}}
    expected = {"step": 3, "loss": None, "rewards": {"a": None, "b": 1.0}}
    assert strict(encoded(row)) == {**expected, "not_finite": {"loss": "nan", "rewards/a": "-inf"}}


def test_numbers_of_other_libraries_are_numbers():
    import numpy as np
    import torch

    line = strict(
        encoded(
            {
                "a": np.float32(0.5),
                "b": torch.tensor(2),
                "c": torch.tensor(math.inf),
                "d": torch.ones(2),
            }
        )
    )
    assert line["a"] == 0.5 and line["b"] == 2 and line["c"] is None and "tensor" in line["d"]


def written(path, steps, max_mb=1.0):
    log = JsonLines(path, max_mb)
    for step in steps:
        log.append([{"step": step, "row": row, "text": "x" * 40} for row in range(3)])
    return log


def test_a_part_never_replaces_another_even_if_older_ones_were_deleted(tmp_path):
    path = tmp_path / "log.jsonl"
    log = written(path, range(1, 5), max_mb=1e-9)  # a part for each step
    deleted, *_ = parts(path)
    deleted.unlink()
    log.append([{"step": 5, "row": 0}])
    log.append([{"step": 6, "row": 0}])
    assert sorted({row["step"] for row in read(path)}) == [2, 3, 4, 5, 6]


def contents(path):
    return {part.name: part.read_bytes() for part in parts(path)}


@pytest.mark.parametrize(
    "max_mb", [1.0, 300 / 2**20, 1e-9], ids=["one part", "parts of two steps", "a part a step"]
)
@pytest.mark.parametrize("killed_after", [0, 1, 4, 7])
def test_a_resumed_log_is_the_log_of_a_run_that_never_stopped(tmp_path, max_mb, killed_after):
    written(tmp_path / "whole.jsonl", range(1, 8), max_mb)
    for step in range(killed_after + 1):
        path = tmp_path / f"from_{step}" / "whole.jsonl"
        written(path, range(1, killed_after + 1), max_mb)
        if killed_after:
            with path.open("ab") as file:
                file.write(b'{"step": 9, "half a li')
        log = JsonLines(path, max_mb)
        log.cut(step)
        once = {part: part.read_bytes() for part in parts(path)}
        log.cut(step)
        assert once == {part: part.read_bytes() for part in parts(path)}
        for later in range(step + 1, 8):
            log.append([{"step": later, "row": row, "text": "x" * 40} for row in range(3)])
        assert contents(path) == contents(tmp_path / "whole.jsonl")


def test_a_reader_beside_the_writer_sees_whole_lines_only(tmp_path):
    path = tmp_path / "samples.jsonl"
    code = (
        "import sys; from pathlib import Path; from grpo_ext.observe.jsonl import JsonLines\n"
        "import time; log = JsonLines(Path(sys.argv[1]), 0.5)\n"
        "for step in range(1, 200):\n"
        "    log.append([{'step': step, 'row': i, 'text': '字' * 2000} for i in range(20)]); "
        "time.sleep(0.005)\n"
        "time.sleep(6000)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": str(REPO)}
    )
    try:
        seen = 0
        deadline = time.time() + LIMIT
        while (len(parts(path)) < 3 or not seen) and time.time() < deadline:
            rows = list(read(path)) if path.exists() else []
            seen = max(seen, len(rows))
            assert all(len(row["text"]) == 2000 for row in rows)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert seen
    last = list(read(path))[-1]["step"]
    JsonLines(path, 0.5).cut(last - 1)
    kept = list(read(path))
    assert [row["step"] for row in kept] == [step for step in range(1, last) for _ in range(20)]


def test_a_full_disk_loses_no_line_and_does_not_end_the_run(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = (
        "import resource, signal, sys; from pathlib import Path; from grpo_ext.observe.jsonl "
        "import JsonLines\n"
        "log = JsonLines(Path(sys.argv[1])); limit = resource.RLIMIT_FSIZE\n"
        "def add(step): log.append([{'step': step, 'text': 'x' * 500}])\n"
        "add(1); resource.setrlimit(limit, (1000, resource.RLIM_INFINITY)); add(2); add(3)\n"
        "print(len(Path(sys.argv[1]).read_bytes().splitlines()))\n"
        "resource.setrlimit(limit, (resource.RLIM_INFINITY,) * 2); add(4)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    out = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LIMIT,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip() == "1" and "free some space" in out.stderr
    assert [row["step"] for row in read(path)] == [1, 2, 3, 4]


def test_a_line_that_is_no_row_is_skipped_counted_and_told_with_its_place(tmp_path):
    path = tmp_path / "metrics.jsonl"
    faults = []
    path.write_bytes(b'{"step": 1}\n{"step": 2,}\n[]\n{"step": 3}\n')
    assert [row["step"] for row in read(path, faults=faults)] == [1, 3]
    [told] = faults
    assert (
        told.startswith("2 lines were skipped; the first is line 2 of ") and "metrics.jsonl" in told
    )


def test_every_part_has_been_flushed_when_the_log_is(tmp_path, monkeypatch):
    flushed = set()
    monkeypatch.setattr(os, "fsync", lambda file: flushed.add(os.fstat(file).st_ino))
    log = JsonLines(tmp_path / "log.jsonl", max_mb=1e-4)
    for step in range(30):
        log.append([{"step": step, "text": "x" * 30}])
    log.sync()
    files = parts(log.path)
    assert len(files) > 5
    assert {file.stat().st_ino for file in files} == flushed


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fails_at_fsync_does_not_end_the_run(tmp_path, monkeypatch, caplog, error):
    """The one call that no disk here can be made to fail."""
    log = written(tmp_path / "metrics.jsonl", [1])

    def fails(number):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fails)
    with caplog.at_level("WARNING"):
        log.sync()
    assert "may be incomplete on disk" in caplog.text and os.strerror(error) in caplog.text
    JsonLines(tmp_path / "nothing.jsonl").sync()  # not written yet
