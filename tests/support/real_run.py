"""Runs of SmolLM2-135M-Instruct on verifiable instructions, a few rows and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from grpo_ext import GRPOExtTrainer
from grpo_ext.tasks.instructions import Instructions
from tests.support.fault_runs import KillAt
from tests.support.step_work import Case
from tests.support.tiny_run import tiny_arguments, tiny_trainer

# a step of the model: completions and their lengths in tokens
SMALL_STEP = Case(
    rows=8,
    micro_batch=4,
    group=4,
    prompt=(20, 30),
    completion=(10, 0.9, 24),
    dead=0.0,
    vocab=49_152,
)


def letters(completions: list[Any], **columns: Any) -> list[float]:
    """1 or 0 by the text, so that some groups have no signal."""
    return [float(sum(map(ord, text[-1]["content"])) % 3 == 0) for text in completions]


class Rewarded:
    """Scores as `letters`, and keeps the prompts and tokens that it was given."""

    __name__ = "rewarded"

    def __init__(self) -> None:
        self.prompts: list[Any] = []
        self.completion_ids: list[list[int]] = []

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        **columns: Any,
    ) -> list[float]:
        self.prompts += prompts
        self.completion_ids += completion_ids
        return letters(completions)


def make(
    model: Path,
    out: Path,
    *,
    lora: bool = False,
    reward: Any = letters,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> GRPOExtTrainer:
    """Return a trainer of two groups of four completions a step."""
    limits = {"max_steps": 2, "max_completion_length": 12, "learning_rate": 1e-5}
    arguments = tiny_arguments(out, **{**limits, **settings})
    rows = Instructions(num_problems=16, num_test_problems=4, max_instructions=1)
    adapter = None
    if lora:
        adapter = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return tiny_trainer(
        model,
        [reward],
        arguments,
        rows.dataset("train"),
        eval_dataset=rows.dataset("test"),
        peft_config=adapter,
        dtype=dtype,
    )


def train_to_the_end(model: Path, out: Path, kill_at: int | None = None) -> None:
    """Train an adapter for three steps, from the newest checkpoint in the folder if there is one.

    Args:
        kill_at: the step at whose end the process kills itself; `None` for none.
    """
    trainer = make(
        model,
        out,
        lora=True,
        max_steps=3,
        save_strategy="steps",
        save_steps=1,
        learning_rate=1e-3,
        top_k=50,
        group_filter="refill",
    )
    if kill_at is not None:
        trainer.add_callback(KillAt(kill_at))
    trainer.train(True)


def trained(trainer: GRPOExtTrainer) -> dict[str, torch.Tensor]:
    """Return copies of the parameters that are trained, by name."""
    return {
        name: parameter.detach().clone()
        for name, parameter in trainer.model.named_parameters()
        if parameter.requires_grad
    }
