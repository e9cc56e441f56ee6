"""The GSM8K demo: word problems of one or two steps, and a model that can calculate but is careless with the problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_ext.demo.pipeline import Demo, save_start
from grpo_ext.recipe.load import Recipe
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import DIGITS
from grpo_ext.tiny.word_problems import word_problem_demonstrations

DEMONSTRATIONS = 12_800
SHAPE: dict[str, Any] = {"architecture": "qwen3", "initializer_range": 0.04}


def prepare(recipe: Recipe, folder: Path, seed: int) -> None:
    """Write demonstrations, a tokenizer trained on them, and an untrained model."""
    assert isinstance(recipe.task, GSM8K)
    rows = list(word_problem_demonstrations(recipe.task, DEMONSTRATIONS, seed=seed))
    save_start(
        folder, rows, lambda tokenizer: build_model(tokenizer, seed=seed, **SHAPE), vocab_size=640, pattern=DIGITS
    )


DEMO = Demo(
    recipe="gsm8k/tiny.yaml",
    sft_recipe="gsm8k/tiny-sft.yaml",
    folder="runs/gsm8k-tiny",
    prepare=prepare,
    prepared_from={"demonstrations": DEMONSTRATIONS, "shape": SHAPE},
)
