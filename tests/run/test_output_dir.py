"""A folder is one process's until that has ended, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from grpo_ext.run.output_dir import hold
from tests.support.forked import LIMIT

HOLDER = """
import os, sys, time
from pathlib import Path
from grpo_ext.run.output_dir import hold
held = hold(Path(sys.argv[1]))
if held and os.fork() == 0:
    time.sleep(6000)
    os._exit(0)
print("held" if held else "refused", flush=True)
time.sleep(6000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_is_free_once_its_process_is_killed(tmp_path, number):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert hold(folder) is None
        process.send_signal(number)
        process.wait()
        try:
            mine = hold(folder, seconds=LIMIT)
            assert mine is not None, "a process that was forked off does not keep it"
            second = subprocess.run(
                [sys.executable, "-c", HOLDER.replace("6000", "0"), str(folder)],
                capture_output=True,
                text=True,
            )
            assert "refused" in second.stdout
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_process_is_not_kept_out_of_its_own_folder(tmp_path):
    held = [hold(tmp_path)]
    thread = threading.Thread(target=lambda: held.append(hold(tmp_path)))
    thread.start()
    thread.join()
    assert all(held)


def test_a_second_process_waits_and_gives_up(tmp_path):
    held = hold(tmp_path)
    patient = HOLDER.replace("sys.argv[1])", "sys.argv[1]), 20").replace("60", "0")
    with subprocess.Popen(
        [sys.executable, "-c", patient, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        hasty = subprocess.run(
            [sys.executable, "-c", HOLDER.replace("60", "0"), str(tmp_path)], capture_output=True
        )
        assert hasty.stdout == b"refused\n" and process.poll() is None
        held.release()
        try:
            assert process.stdout.readline() == "held\n"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
