"""A short run with `deterministic: true`, of prompts of three lengths."""

from __future__ import annotations

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from tests.support.tiny_run import tiny_arguments

ROWS = [{"prompt": f"Use {n}, 3 to make {n + 3}." + " Please." * (n % 3)} for n in range(24)]


def letters(completions, **kwargs):
    return [float(sum(map(ord, text)) % 5) for text in completions]


def make(folder, out, model=None, peft_config=None, **settings):
    usual = {"max_steps": 2, "max_completion_length": 12, "learning_rate": 1e-2}
    more = {name: settings.pop(name) for name in ("sampler", "rollout_func") if name in settings}
    dtype = settings.pop("dtype", torch.float32)
    return GRPOExtTrainer(
        model or AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        [letters],
        tiny_arguments(out, deterministic=True, **{**usual, **settings}),
        Dataset.from_list(ROWS),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        peft_config=peft_config,
        **more,
    )
