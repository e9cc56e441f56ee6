"""The Countdown demo: three small numbers, plus and minus, and a model that makes honest attempts but gives up early."""

from __future__ import annotations

import json
from pathlib import Path

from grpo_ext.demo.pipeline import Demo
from grpo_ext.files import write_atomically
from grpo_ext.recipe.load import Recipe
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import NUMBERS, build_tokenizer

DEMONSTRATIONS = 12_800
SHAPE = {"architecture": "qwen3", "hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 3}
INITIALIZER_RANGE = 0.04


def prepare(recipe: Recipe, folder: Path, seed: int) -> None:
    """Write demonstrations, a tokenizer trained on them, and an untrained model."""
    rows = list(countdown_demonstrations(recipe.task, DEMONSTRATIONS, seed=seed))
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    write_atomically(folder / "demonstrations.jsonl", "\n".join(lines) + "\n")
    corpus = [message["content"] for row in rows[:2000] for part in row.values() for message in part]
    tokenizer = build_tokenizer(corpus, pattern=NUMBERS)
    tokenizer.save_pretrained(folder / "model")
    model = build_model(tokenizer, initializer_range=INITIALIZER_RANGE, seed=seed, **SHAPE)
    model.save_pretrained(folder / "model")


DEMO = Demo(
    recipe="countdown/tiny.yaml",
    sft_recipe="countdown/tiny-sft.yaml",
    folder="runs/countdown-tiny",
    prepare=prepare,
    prepared_from={"demonstrations": DEMONSTRATIONS, "shape": SHAPE, "initializer_range": INITIALIZER_RANGE},
)
