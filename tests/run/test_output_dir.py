"""A folder is one process's until that has ended, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from grpo_ext.run.output_dir import hold

HOLDER = """
import os, sys, time
from pathlib import Path
from grpo_ext.run.output_dir import hold
held = hold(Path(sys.argv[1]))
if held and os.fork() == 0:
    time.sleep(20)
    os._exit(0)
print("held" if held else "refused", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_folder_is_free_once_its_process_is_killed(tmp_path, number):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        assert hold(folder) is None
        process.send_signal(number)
        process.wait()
        try:
            mine = hold(folder, seconds=5.0)
            assert mine is not None, "a process that was forked off does not keep it"
            second = subprocess.run(
                [sys.executable, "-c", HOLDER.replace("60", "0"), str(folder)], capture_output=True, text=True
            )
            assert "refused" in second.stdout
        finally:
            os.killpg(process.pid, signal.SIGKILL)
