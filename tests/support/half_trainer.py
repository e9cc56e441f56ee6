"""A trainer of the tiny model in a number type, whose weights do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from tests.support.tiny_run import tiny_arguments

ROWS = [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 17)]


def letters(completions: list[str], **columns: Any) -> list[float]:
    """1 or 0 by the text, so that some groups have no signal."""
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]


def half_trainer(
    folder: Path, out: Path, dtype: torch.dtype, *, lora: bool = False, **settings: Any
) -> GRPOExtTrainer:
    """A trainer of the tiny model in a number type, whose weights do not change."""
    adapter = None
    if lora:
        adapter = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    settings = {"max_steps": 1, "learning_rate": 0.0, "sampler_check_share": 1.0} | settings
    return GRPOExtTrainer(
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        [letters],
        tiny_arguments(out, health_action="none", **settings),
        Dataset.from_list(ROWS),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        peft_config=adapter,
    )
