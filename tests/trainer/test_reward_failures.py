"""A run with rewards that raise, return inf, or answer too little: it goes on, or stops with a checkpoint and the reason."""

from __future__ import annotations

import math

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.rewards.guard import RewardFailure


def make(folder, out, rewards, **settings):
    args = GRPOExtConfig(
        output_dir=str(out),
        max_steps=4,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=8,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **settings,
    )
    rows = [{"prompt": [{"role": "user", "content": f"Use {a} and 1."}], "number": a} for a in range(8)]
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return GRPOExtTrainer(str(folder), rewards, args, Dataset.from_list(rows), processing_class=tokenizer)


def length(completions, **kwargs):
    return [float(len(c[0]["content"])) for c in completions]


class Faulty:
    """Raises on prompts whose number is in `raises`, returns inf where it is in `infinite`; counts both."""

    def __init__(self, raises=(), infinite=()):
        self.raises, self.infinite, self.rows = raises, infinite, 0
        self.__name__ = "faulty"

    def __call__(self, completions, number, **kwargs):
        if len(completions) == 1:
            self.rows += number[0] in self.raises
        if any(n in self.raises for n in number):
            raise RuntimeError("no idea")
        return [
            math.inf if n in self.infinite else 1.0 / (1 + len(c[0]["content"]))
            for n, c in zip(number, completions, strict=True)
        ]


def test_raising_and_infinite_rewards_leave_the_run_healthy(tiny_folder, tmp_path):
    faulty = Faulty(raises=(1, 3), infinite=(5,))
    trainer = make(tiny_folder, tmp_path, [length, faulty])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"]) for entry in logs)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    # 4 steps of 4 prompts run over the 8 prompts twice; 3 of 8 prompts are bad for all 4 completions
    assert logs[-1]["rewards/faulty/failed"] == 2 * 3 * 4
    assert all("rewards/length/failed" not in entry for entry in logs)
    assert faulty.rows == 2 * 2 * 4


def test_a_reward_that_always_fails_stops_the_run_with_a_checkpoint(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, [length, Faulty(raises=range(8))])
    with pytest.raises(RewardFailure, match=r"(?s)'faulty' failed on .* no idea"):
        trainer.train()
    step = trainer.state.global_step
    assert (tmp_path / f"checkpoint-{step}" / "model.safetensors").is_file()


def test_on_error_raise_stops_at_the_first(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, [length, Faulty(infinite=range(8))], reward_on_error="raise")
    with pytest.raises(RewardFailure, match="inf"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_registered_rewards_are_taken_by_name(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, ["format", length])
    assert trainer.reward_func_names == ["format", "length"]
    trainer.train()
    assert "rewards/format/mean" in trainer.state.log_history[0]
