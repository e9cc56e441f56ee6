"""SIGKILL in the middle of an episode: the run that goes on ends with the same weights, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from conftest import REPO
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys
from datasets import Dataset
from transformers import AutoTokenizer
from grpo_ext import Environment, GRPOExtConfig, GRPOExtTrainer, register_environment

folder, out, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
steps = 0

@register_environment("deadly")
class Deadly(Environment):
    def __init__(self):
        self.turns, self.score = 0, 0.0

    def step(self, text):
        global steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.turns += 1
        self.score += len(text) % 3
        return f"turn {self.turns}", self.turns == 3

rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"Use {n}."}]} for n in range(12)])
args = GRPOExtConfig(
    output_dir=out, environment={"name": "deadly", "turn_tokens": 4}, top_k=20, max_steps=5, save_strategy="steps",
    save_steps=1,
    learning_rate=1e-2, per_device_train_batch_size=8, num_generations=4, max_completion_length=60, report_to="none",
    disable_tqdm=True, use_cpu=True, bf16=False,
)
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
trainer = GRPOExtTrainer(folder, ["environment"], args, rows, processing_class=tokenizer)
trainer.train(True)
trainer.save_model()
"""


def run(script, folder, out, kill_at=0):
    words = [sys.executable, str(script), str(folder), str(out), str(kill_at)]
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)


def test_a_run_killed_in_an_episode_goes_on_exactly(tiny_folder, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert (done := run(script, tiny_folder, tmp_path / "whole")).returncode == 0, done.stderr[-3000:]
    out = tmp_path / "killed"
    # 8 episodes of 3 turns a generation: in its third, within the first turns and between two turns of all
    for kill_at in (2 * 24 + 3, 8):
        assert run(script, tiny_folder, out, kill_at).returncode == -signal.SIGKILL
        assert not (out / "model.safetensors").exists()
    assert (done := run(script, tiny_folder, out)).returncode == 0, done.stderr[-3000:]
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
