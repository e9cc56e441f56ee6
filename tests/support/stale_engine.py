"""Short runs beside a sampler in another process, which has a copy of the weights, and ways to keep
an update from that copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.tasks.countdown import Countdown

USUAL: dict[str, Any] = {
    "learning_rate": 1e-6,
    "max_steps": 3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "logging_steps": 1,
    "sampler": "process",
    "report_to": "none",
    "save_strategy": "no",
    "health_action": "none",
    "disable_tqdm": True,
}


def spread(completions: list[Any], **columns: Any) -> list[float]:
    """A reward between 0 and 1 by the characters, so that every group has signal."""
    return [sum(map(ord, messages[-1]["content"])) % 17 / 16 for messages in completions]


def trainer_of(model: Path, out: Path, device: str = "cpu", **settings: Any) -> GRPOExtTrainer:
    """Return a trainer of three steps.

    Args:
        model: the folder of the model and its tokenizer.
        out: the output folder.
        device: "cpu" or "cuda".
        settings: fields that differ from `USUAL`, or are not in it.
    """
    args = GRPOExtConfig(
        output_dir=str(out), use_cpu=device == "cpu", bf16=False, **{**USUAL, **settings}
    )
    task = Countdown(num_problems=64, max_numbers=3, max_number=9, operators="+-", max_target=30)
    return GRPOExtTrainer(str(model), [spread], args, task.dataset("train"))


def send_only_first_weights(trainer: GRPOExtTrainer) -> None:
    """Send the sampler no weights after those of the start."""
    sampler: Any = trainer.parts.generations.sampler
    load = sampler.load_weights

    def load_first(step: int) -> None:
        if step == 0:
            load(step)

    sampler.load_weights = load_first


def keep_first_tensor(trainer: GRPOExtTrainer) -> None:
    """Let every update reach the sampler, except that of the embedding, its first tensor."""
    sampler: Any = trainer.parts.generations.sampler
    load = sampler.load_weights
    kept = next(trainer.model.parameters()).detach().clone()

    def load_others(step: int) -> None:
        load(step)
        with torch.no_grad():
            sampler._shared[0].copy_(kept)

    sampler.load_weights = load_others
