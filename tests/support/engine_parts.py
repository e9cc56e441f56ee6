"""What the tests of real vLLM engines share.

A trainer that moves fast, and how far the two log-probs are apart.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grpo_ext import load_recipe
from grpo_ext.vllm.server import RANK_VARIABLES, Server, server_of
from tests.support.forked import LIMIT
from tests.support.logs import entries_with
from tests.support.places import REPO

STEPS = 5


def outside() -> dict[str, str]:
    """The environment without what an engine in this process has set, for another run."""
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_server(model: Path, folder: Path, **settings: Any) -> Iterator[Server]:
    """A server of vLLM on a CPU, for the model in `model`; it writes to `folder`.

    Args:
        settings: keys of the recipe besides those of every server here.
    """
    recipe = {
        "model_name_or_path": str(model),
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_max_model_length": 256,
        "vllm_server_host": "127.0.0.1",
        "vllm_server_port": free_port(),
        **settings,
    }
    server = server_of(load_recipe(None, recipe))
    with server.running(seconds=LIMIT, restarts=0):
        yield server


# Episodes of one to four turns, answered in between.
WANDERING = {"name": f"{REPO}/tests/support/worlds.py:Wandering", "turn_tokens": 5}


def spread(completions, **_):
    """A reward that differs from completion to completion."""
    return [sum(map(ord, c[-1]["content"])) % 17 / 16 for c in completions]


def fifth(completions, **_):
    """A reward of 1 for every fifth completion or so, else 0."""
    return [float(sum(map(ord, c[-1]["content"])) % 5 == 0) for c in completions]


def make_trainer(engine_folder, output_dir, peft_config=None, reward=spread, **options):
    """A trainer at a learning rate that moves every log-prob by much in a step."""
    from grpo_ext import GRPOExtConfig, GRPOExtTrainer
    from grpo_ext.tasks.countdown import Countdown

    args = GRPOExtConfig(
        output_dir=str(output_dir),
        **{
            "use_cpu": True,
            "bf16": False,
            "use_vllm": True,
            "vllm_max_model_length": 256,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "max_steps": STEPS,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 16,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "health_action": "none",
            **options,
        },
    )
    rows = Countdown(
        num_problems=64, max_numbers=3, max_number=9, operators="+-", max_target=30
    ).dataset("train")
    return GRPOExtTrainer(str(engine_folder), [reward], args, rows, peft_config=peft_config)


def differences(trainer) -> list[float]:
    """After training, the largest difference of the sampler's and the trainer's log-probs, a number
    a step.
    """
    before = {
        name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad
    }
    trainer.train()
    moved = max(
        (p - before[name]).abs().max().item()
        for name, p in trainer.model.named_parameters()
        if name in before
    )
    assert moved > trainer.args.learning_rate / 2  # it trained
    found = entries_with(trainer, "loss")
    assert len(found) == trainer.args.max_steps and found[0]["grad_norm"] > 0
    name = "sampling_logp_difference" if trainer.as_trl else "logp_difference"
    return [entry[f"sampling/{name}/max"] for entry in found]


def check_truncated(found: list[float], close: float) -> None:
    """Most steps are exact. In one a token on the edge of the kept set may fall on either side of
    it by rounding, and its position is then off by that token's mass."""
    assert sorted(found)[len(found) // 2] <= close
    assert max(found) <= 0.2


def without_sync(trainer):
    """The control: the engine keeps the weights that it was started with, or was given last."""
    trainer.vllm_generation.sync_weights = lambda: None
    return trainer


def lora():
    from peft import LoraConfig

    torch.manual_seed(0)
    return LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")


REWARDS = """
from grpo_ext import register


@register("spread")
def spread(completions):
    return [sum(map(ord, text)) % 17 / 16 for text in completions]


@register("fifth")
def fifth(completions):
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]
"""


def words(engine_folder, folder, ranks, **options):
    """A recipe of 16 completions a step on disk, whose `output_dir` is `folder/ranks`.

    JSON is YAML.
    """
    rewards = folder / "rewards.py"
    rewards.write_text(REWARDS)
    values = {
        **{
            "model_name_or_path": str(engine_folder),
            "output_dir": str(folder / f"{ranks}"),
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
            "per_device_train_batch_size": 16 // ranks,
            "max_completion_length": 24,
        },
        **{
            "learning_rate": 1e-3,
            "max_steps": 10,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
        },
        **{
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "health_action": "none",
            "use_vllm": True,
        },
        **{"vllm_max_model_length": 256, **options},
    }
    path = folder / f"{ranks}.json"
    path.write_text(json.dumps(values))
    return path


def train_words(path, ranks):
    return [
        sys.executable,
        "-m",
        "grpo_ext",
        "train",
        "--config",
        str(path),
        "--num_processes",
        str(ranks),
    ]


def check_run(words):
    """Run a command to its end; what it wrote to both outputs.

    It finds the modules of this folder.
    """
    path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
    environment = {**outside(), "PYTHONPATH": path}
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=REPO, timeout=LIMIT, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def steps_of(path):
    """What the run of a recipe logged of its steps."""
    state = json.loads((path.with_suffix("") / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]
