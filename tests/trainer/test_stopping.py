"""Signals sent to real processes: the run stops with a checkpoint and code 75, and the same command resumes it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
import torch
from conftest import REPO
from safetensors.torch import load_file

from grpo_ext.run.ranks import EXIT_INTERRUPTED
from grpo_ext.trainer.manifest import checkpoints, what_is_wrong

pytestmark = pytest.mark.slow
STEPS = 12
SLOW = """
import time
from grpo_ext import register

@register("slow")
def slow(completions):
    '''1 where the sum of the characters is even; takes half a second a batch.'''
    time.sleep(0.5)
    return [float(sum(map(ord, text)) % 2 == 0) for text in completions]
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}


def command(tiny_folder, out, **more):
    plugin = out.parent / "slow.py"
    plugin.write_text(SLOW)
    settings = {
        "config": "recipes/countdown/tiny.yaml", "model_name_or_path": tiny_folder, "output_dir": out, "max_steps": STEPS,
        "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 8, "num_problems": 64,
        "eval_strategy": "no", "save_strategy": "no", "save_total_limit": 9, "disable_tqdm": "true", "learning_rate": "1e-2",
        "reward_funcs": "[slow]", "reward_weights": "[1.0]", "reward_plugins": f"[{plugin}]", "warmup_steps": 0, **more,
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return [sys.executable, "-m", "grpo_ext", "train", *words]


def start(words):
    """A process that minds Ctrl-C, also where these tests run in the background of a shell, which has it ignored.

    It prints to a file: a pipe that nobody reads is full after some steps, and then it waits.
    """
    printed = tempfile.TemporaryFile("w+")  # noqa: SIM115  the process has it while it runs
    process = subprocess.Popen(
        words,
        cwd=REPO,
        env=ENVIRONMENT,
        stdout=printed,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    process.printed = printed
    return process


def wait_for_step(out, process, step=2):
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        path = out / "metrics.jsonl"
        if path.exists() and path.read_text().count("\n") >= step:
            return
        assert process.poll() is None, end_of(process)[1][-3000:]
        time.sleep(0.1)
    raise AssertionError("no step within five minutes")


def end_of(process):
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    process.printed.seek(0)
    return process.returncode, process.printed.read()


def test_pre_emption_ctrl_c_and_the_same_command_again(tiny_folder, tmp_path):
    whole = subprocess.run(
        command(tiny_folder, tmp_path / "whole"),
        cwd=REPO,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert whole.returncode == 0, whole.stderr[-3000:]
    out = tmp_path / "run"
    for number, ranks_first in ((signal.SIGTERM, 2), (signal.SIGINT, 6)):
        process = start(command(tiny_folder, out))
        wait_for_step(out, process, ranks_first)
        process.send_signal(number)
        code, output = end_of(process)
        assert code == EXIT_INTERRUPTED, output[-3000:]
        assert f"The cause is {number.name}." in output and "Traceback" not in output, output[-3000:]
    steps = [int(folder.name.rpartition("-")[2]) for folder in checkpoints(out)]
    assert len(steps) == 2 and 2 <= steps[0] < steps[1] < STEPS
    assert all(what_is_wrong(folder) is None for folder in checkpoints(out))
    code, output = end_of(start(command(tiny_folder, out)))
    assert code == 0 and f"Resumes from {out}/checkpoint-{steps[1]}" in output, output[-3000:]
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    for log in ("samples.jsonl", "metrics.jsonl"):
        ours, theirs = ([read(line) for line in (f / log).open()] for f in (out, tmp_path / "whole"))
        assert ours == theirs


def read(line):
    clocks = ("time", "per_second", "runtime", "speed", "train_loss")
    return {key: value for key, value in json.loads(line).items() if not any(c in key for c in clocks)}


def test_a_second_ctrl_c_leaves_at_once_and_another_run_or_recipe_is_refused(tiny_folder, tmp_path):
    out = tmp_path / "run"
    words = command(tiny_folder, out, save_strategy="steps", save_steps=1, max_steps=500)
    process = start(words)
    wait_for_step(out, process)
    done = subprocess.run(words, cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and f"another run is writing to {out}" in done.stderr, done.stderr[-2000:]
    logged = (out / "metrics.jsonl").read_text().count("\n")
    wait_for_step(out, process, logged + 1)  # the next one has half a second to go: both signals come within it
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)  # two at once arrive as one
    code, output = end_of(process)
    assert code == 130, output[-3000:]
    assert not (out / "trainer_state.json").exists()
    other = command(tiny_folder, out, save_strategy="steps", save_steps=1, max_steps=500, learning_rate="2e-2")
    done = subprocess.run(other, cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "learning_rate: 0.01  ->  0.02" in done.stderr, done.stderr[-2000:]


RANK = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import test_nonfinite, test_resume, test_rollback
from transformers import TrainerCallback
from grpo_ext.trainer.signals import Interrupted

class Sends(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGUSR1)

trainer = test_resume.make({folder!r}, {out!r}, save_strategy="no")
if os.environ["RANK"] == "1":
    test_nonfinite.spoil(trainer, {{2, 3}}, float("nan"))
trainer.add_callback(Sends())
try:
    trainer.train()
except Interrupted as stopped:
    assert trainer.parts.finite.skipped == 2 and all(p.isfinite().all() for p in trainer.model.parameters())
    back = test_rollback.trained({folder!r}, {out!r} + "/back", test_rollback.Mood())
    assert back.state.global_step == test_rollback.STEPS and back.parts.stopping.state_dict()["rollbacks"] == 1
    sys.exit(stopped.code)
"""


def test_two_ranks_skip_leave_and_go_back_together(tiny_folder, tmp_path):
    """The gradient is spoilt on one rank, the signal comes to one rank, and one rank sees the alarm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tests = str(REPO / "tests")
    code = RANK.format(tests=f"{tests}/trainer", folder=str(tiny_folder), out=str(tmp_path))
    shared = {
        **ENVIRONMENT,
        "PYTHONPATH": f"{REPO}{os.pathsep}{tests}",
        "ACCELERATE_USE_CPU": "true",
        "WORLD_SIZE": "2",
    }
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**shared, "RANK": str(i), "LOCAL_RANK": str(i)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == EXIT_INTERRUPTED, errors[-3000:]
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-5"]
    assert what_is_wrong(tmp_path / "checkpoint-5") is None
    assert len(list((tmp_path / "not_finite-2").iterdir())) == 2
    (entry,) = json.loads((tmp_path / "back" / "rollbacks.json").read_text())
    assert what_is_wrong(tmp_path / "back" / f"checkpoint-{entry['to']}") is None
