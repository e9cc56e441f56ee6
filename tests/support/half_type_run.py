"""A short run of a pretrained model in a number type: an adapter learns length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.support.real_run import make

COMPLETIONS = 16  # of a step


def length(completions: list[Any], **columns: Any) -> list[float]:
    """The number of characters, up to 40."""
    return [min(len(text[-1]["content"]), 40) / 40 for text in completions]


def steps_of(
    model: Path, out: Path, dtype: torch.dtype, steps: int, **settings: Any
) -> list[dict[str, float]]:
    """Train an adapter, and return what was logged of each step.

    Args:
        model: the folder of the model.
        out: the output folder.
        dtype: of the weights and of the products; float32 or bfloat16.
        steps: the number of optimizer steps.
        **settings: further fields of the arguments.
    """
    trainer = make(
        model,
        out,
        lora=True,
        reward=length,
        dtype=dtype,
        bf16=dtype == torch.bfloat16,
        max_steps=steps,
        per_device_train_batch_size=COMPLETIONS,
        max_completion_length=8,
        learning_rate=2e-3,
        sampler_check_share=1.0,
        **settings,
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]
