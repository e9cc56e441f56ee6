"""The Countdown demo: three small numbers, plus and minus, and a model that makes honest attempts but gives up early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_ext.demo.pipeline import Demo, save_start
from grpo_ext.recipe.load import Recipe
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import NUMBERS

DEMONSTRATIONS = 12_800
SHAPE: dict[str, Any] = {
    "architecture": "qwen3",
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_attention_heads": 3,
    "initializer_range": 0.04,
}


def prepare(recipe: Recipe, folder: Path, seed: int) -> None:
    """Write demonstrations, a tokenizer trained on them, and an untrained model."""
    assert isinstance(recipe.task, Countdown)
    rows = list(countdown_demonstrations(recipe.task, DEMONSTRATIONS, seed=seed))
    save_start(folder, rows, lambda tokenizer: build_model(tokenizer, seed=seed, **SHAPE), pattern=NUMBERS)


DEMO = Demo(
    recipe="countdown/tiny.yaml",
    sft_recipe="countdown/tiny-sft.yaml",
    folder="runs/countdown-tiny",
    prepare=prepare,
    prepared_from={"demonstrations": DEMONSTRATIONS, "shape": SHAPE},
)
