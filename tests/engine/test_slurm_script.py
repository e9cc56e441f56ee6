"""The Slurm script on three addresses of this machine.

Slurm's two commands are stood in for, the rest is real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine_parts import free_port, outside, words
from tests.support.forked import LIMIT
from tests.support.places import REPO

pytestmark = pytest.mark.vllm
SCONTROL = "#!/usr/bin/env bash\nprintf '127.0.0.%s\\n' 1 2 3\n"
SRUN = """#!/usr/bin/env python
\"\"\"The command that follows the options, once for each of --nodes, here.\"\"\"
import os, signal, subprocess, sys
words, nodes = sys.argv[1:], 1
while words[0].startswith("--"):
    option = words.pop(0)
    if option == "--nodes":
        nodes = int(words.pop(0))
    elif "=" not in option:
        words.pop(0)
runs = [subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(n)}) for n in range(nodes)]
signal.signal(signal.SIGTERM, lambda *_: [run.terminate() for run in runs])
sys.exit(max(run.wait() for run in runs))
"""
CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: 'no'
dynamo_backend: 'no'
main_training_function: main
rdzv_backend: static
same_network: true
"""


def test_two_machines_train_and_one_serves(engine_folder, tmp_path):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (tmp_path / "config.yaml").write_text(CONFIG)
    options = {"use_vllm": True, "vllm_mode": "server", "max_steps": 3, "learning_rate": 1e-2}
    recipe = words(engine_folder, tmp_path, 2, **options)
    here = {
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "machine-[1-3]",
        "GPUS": "1",
        "ACCELERATE_CONFIG": str(tmp_path / "config.yaml"),
        "TRAIN_PORT": str(free_port()),
        "SAMPLE_PORT": str(free_port()),
        "GROUP_PORT": str(free_port()),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", "recipes/slurm/multi_node.sh", str(recipe)],
        env={**outside(), **here},
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert (
        "2 ranks (MULTI_CPU, gloo)" in done.stdout and "answers at http://127.0.0.3" in done.stdout
    )
    state = json.loads((tmp_path / "2" / "trainer_state.json").read_text())
    steps = [entry for entry in state["log_history"] if "loss" in entry]
    assert len(steps) == 3
    assert max(entry["sampling/logp_difference/max"] for entry in steps) <= 1e-5
