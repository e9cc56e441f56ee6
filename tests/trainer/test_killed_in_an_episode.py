"""SIGKILL in the middle of an episode.

The run that goes on ends with the same weights, bit for bit.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer

from grpo_ext import Environment, GRPOExtTrainer
from tests.support.forked import Forked
from tests.support.tiny_run import tiny_arguments

pytestmark = pytest.mark.slow


def train(folder, out, kill_at):
    """Train, and end this process within the step `kill_at` of all episodes."""
    steps = 0

    class Deadly(Environment):
        def __init__(self):
            self.turns, self.score = 0, 0.0

        def step(self, text):
            nonlocal steps
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.turns += 1
            self.score += len(text) % 3
            return f"turn {self.turns}", self.turns == 3

    globals()["Deadly"] = Deadly
    rows = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"Use {n}."}]} for n in range(12)]
    )
    args = tiny_arguments(
        out,
        logging_steps=10,
        environment={"name": f"{__name__}:Deadly", "turn_tokens": 4},
        top_k=20,
        max_steps=5,
        save_strategy="steps",
        save_steps=1,
        learning_rate=1e-2,
        max_completion_length=60,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    trainer = GRPOExtTrainer(str(folder), ["environment"], args, rows, processing_class=tokenizer)
    trainer.train(True)
    trainer.save_model()


def run(folder, out, kill_at=0):
    process = Forked(train, folder, out, kill_at)
    return process.wait(), process.printed[-3000:]


def test_a_run_killed_in_an_episode_goes_on_exactly(tiny_folder, tmp_path):
    code, printed = run(tiny_folder, tmp_path / "whole")
    assert code == 0, printed
    out = tmp_path / "killed"
    # 8 episodes of 3 turns a generation: in its third, within the first turns and between two turns
    # of all
    for kill_at in (2 * 24 + 3, 8):
        assert run(tiny_folder, out, kill_at)[0] == -signal.SIGKILL
        assert not (out / "model.safetensors").exists()
    code, printed = run(tiny_folder, out)
    assert code == 0, printed
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
