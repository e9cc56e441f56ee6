"""A server that is killed in mid-generation.

With `--serve` the run goes on, else it ends with a checkpoint and can go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import requests

from grpo_ext import load_recipe
from grpo_ext.trainer.manifest import what_is_wrong
from grpo_ext.vllm.http import VllmLine
from grpo_ext.vllm.server import server_of
from grpo_ext.vllm.signature import KEY
from tests.support.engine_parts import free_port, outside
from tests.support.forked import LIMIT
from tests.support.places import REPO

pytestmark = pytest.mark.vllm
STEPS = 6


@pytest.fixture
def recipe(engine_folder, tmp_path, monkeypatch):
    """A recipe file, and where its server answers.

    A generation takes a second or more, and a key is needed.
    """
    monkeypatch.setenv(KEY, "secret")
    rewards = tmp_path / "spread.py"
    rewards.write_text(
        "from grpo_ext import register\n\n@register('spread')\ndef spread(completions):\n"
        "    return [sum(map(ord, text)) % 17 / 16 for text in completions]\n"
    )
    values = {
        **{
            "model_name_or_path": str(engine_folder),
            "output_dir": str(tmp_path / "run"),
            "accelerate_config": "cpu",
        },
        **{
            "task": "countdown",
            "num_problems": 64,
            "reward_funcs": ["spread"],
            "reward_plugins": [str(rewards)],
        },
        **{
            "num_generations": 4,
            "per_device_train_batch_size": 16,
            "max_completion_length": 256,
            "max_steps": STEPS,
        },
        **{
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "save_strategy": "no",
        },
        **{
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "health_action": "none",
            "disable_tqdm": True,
        },
        **{
            "use_vllm": True,
            "vllm_mode": "server",
            "vllm_max_model_length": 400,
            "vllm_server_timeout": LIMIT,
        },
        **{
            "vllm_server_host": "127.0.0.1",
            "vllm_server_port": free_port(),
            "vllm_group_port": free_port(),
        },
    }
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(values))  # JSON is YAML
    return path, f"http://127.0.0.1:{values['vllm_server_port']}"


def start(path, *words):
    command = [sys.executable, "-m", "grpo_ext", "train", "--config", str(path), *words]
    with path.with_suffix(".log").open("a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=REPO, env=outside()
        )


def wait_for_generation(process, url, run, step):
    """Until the server is generating for a step of the run after `step`."""
    while process.poll() is None:
        done = (
            (run / "metrics.jsonl").read_text().count("\n")
            if (run / "metrics.jsonl").exists()
            else 0
        )
        try:
            lines = (
                VllmLine(LIMIT).get(f"{url}/metrics").body.decode().splitlines()
                if done >= step
                else []
            )
        except ConnectionError:
            lines = []
        if any(
            line.startswith("vllm:num_requests_running") and float(line.split()[-1]) > 0
            for line in lines
        ):
            return
        time.sleep(0.05)
    said = (run.parent / "recipe.log").read_text()
    raise RuntimeError(f"the run ended before:\n{said[-3000:]}")


def history(run):
    state = json.loads((run / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


def test_run_that_serves_itself_goes_on(recipe, tmp_path):
    path, url = recipe
    run = start(path, "--serve")
    try:
        wait_for_generation(run, url, tmp_path / "run", step=2)
        servers = [
            p
            for p in psutil.Process(run.pid).children(recursive=True)
            if "api_server" in " ".join(p.cmdline())
        ]
        os.killpg(servers[0].pid, signal.SIGKILL)
        assert run.wait(LIMIT) == 0, path.with_suffix(".log").read_text()[-3000:]
    finally:
        run.terminate()
    said = path.with_suffix(".log").read_text()
    assert "The vLLM server exited with code -9; restarting it (1 of 3)" in said
    assert "The vLLM server failed: ConnectionError" in said
    steps = history(tmp_path / "run")
    assert len(steps) == STEPS
    assert max(entry["sampling/logp_difference/max"] for entry in steps) <= 1e-4
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/health", timeout=LIMIT)  # it was stopped at the end


def test_run_without_its_server_ends_with_a_checkpoint_and_goes_on_from_it(recipe, tmp_path):
    path, url = recipe
    server = server_of(load_recipe(path))
    server.start()
    try:
        server.wait_ready(LIMIT)
        bearer = {"Authorization": "Bearer secret"}  # the key itself is not taken
        for route in ("update_weights", "collective_rpc", "reset_prefix_cache", "v1/completions"):
            for headers in ({}, bearer):
                asked = requests.post(f"{url}/{route}", json={}, headers=headers, timeout=LIMIT)
                assert asked.status_code == 401
        run = start(path, "--vllm_server_timeout", "20", "--vllm_server_retries", "1")
        wait_for_generation(run, url, tmp_path / "run", step=2)
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        assert run.wait(LIMIT) == 1
    finally:
        server.stop()
    said = path.with_suffix(".log").read_text()
    assert "with a checkpoint" in said and f"The vLLM server at {url} still fails" in said
    checkpoints = sorted((tmp_path / "run").glob("checkpoint-*"))
    done = int(checkpoints[-1].name.rpartition("-")[2])
    assert done >= 2 and what_is_wrong(checkpoints[-1]) is None

    with server.running(seconds=LIMIT, restarts=0):
        assert start(path).wait(LIMIT) == 0  # the same command
    steps = history(tmp_path / "run")
    assert [entry["step"] for entry in steps] == list(range(1, STEPS + 1))
    assert max(entry["sampling/logp_difference/max"] for entry in steps) <= 1e-4
