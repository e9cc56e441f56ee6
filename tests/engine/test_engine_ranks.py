"""Two processes beside one: both draw the same from one server, so that their losses are the same to rounding."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import REPO
from engine_parts import free_port, outside

from grpo_ext import load_recipe
from grpo_ext.vllm.of_recipe import server_of

pytestmark = pytest.mark.vllm
STEPS = 10


def words(engine_folder, folder, ranks, **options):
    """A recipe of 16 completions a step, on disk; JSON is YAML."""
    rewards = folder / "spread.py"
    rewards.write_text(
        "from grpo_ext import register\n\n@register('spread')\ndef spread(completions):\n"
        "    return [sum(map(ord, text)) % 17 / 16 for text in completions]\n"
    )
    values = {
        **{
            "model_name_or_path": str(engine_folder),
            "output_dir": str(folder / f"{ranks}"),
            "accelerate_config": "cpu",
        },
        **{"task": "countdown", "num_problems": 64, "reward_funcs": ["spread"], "reward_plugins": [str(rewards)]},
        **{"num_generations": 4, "per_device_train_batch_size": 16 // ranks, "max_completion_length": 24},
        **{"learning_rate": 1e-3, "max_steps": STEPS, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True},
        **{"use_cpu": True, "bf16": False, "report_to": "none", "health_action": "none", "use_vllm": True},
        **{"vllm_max_model_length": 256, **options},
    }
    path = folder / f"{ranks}.json"
    path.write_text(json.dumps(values))
    return path


def train(path, ranks):
    out = subprocess.run(
        [sys.executable, "-m", "grpo_ext", "train", "--config", str(path), "--num_processes", str(ranks)],
        capture_output=True,
        text=True,
        cwd=REPO,
        timeout=400,
        env=outside(),
    )
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-4000:]
    assert f"{ranks} rank" in out.stdout
    state = json.loads((path.parent / str(ranks) / "trainer_state.json").read_text())
    steps = [entry for entry in state["log_history"] if "loss" in entry]
    assert len(steps) == STEPS
    assert max(entry["sampling/sampling_logp_difference/max"] for entry in steps) <= 1e-5
    return steps


def test_two_ranks_have_the_losses_of_one(engine_folder, tmp_path):
    where = {"vllm_mode": "server", "vllm_server_host": "127.0.0.1", "vllm_server_port": free_port()}
    options = {**where, "vllm_group_port": free_port(), "generation_kwargs": {"seed": 1}}
    one, two = (words(engine_folder, tmp_path, ranks, **options) for ranks in (1, 2))
    with server_of(load_recipe(one)).running(seconds=240, restarts=0):
        found = [train(path, ranks) for ranks, path in ((1, one), (2, two))]
    assert [entry["reward"] for entry in found[0]] == pytest.approx([entry["reward"] for entry in found[1]], abs=1e-7)
    assert [entry["loss"] for entry in found[0]] == pytest.approx([entry["loss"] for entry in found[1]], abs=1e-5)
    norms = [[entry["grad_norm"] for entry in steps] for steps in found]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3) and min(norms[0]) > 0


@pytest.mark.parametrize(
    "adapter", [{}, {"use_peft": True, "lora_dropout": 0, "vllm_sync_adapter": "adapter"}], ids=["full", "adapter"]
)
def test_two_ranks_each_with_an_engine(engine_folder, tmp_path, adapter):
    train(words(engine_folder, tmp_path, 2, vllm_mode="colocate", **adapter), 2)
