"""Create a tiny model and its tokenizer, so that the examples need no download."""

from __future__ import annotations

from pathlib import Path

from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer

TEXTS = [
    "Use 3, 7, 12 to make 16.",
    "<think>3 + 7 = 10</think> <answer>12 + 7 - 3</answer>",
    "Say hello. Hello!",
]


def tiny_model(seed: int = 0) -> str:
    """Return the folder of an untrained Llama model with 0.1 million parameters."""
    folder = Path("runs/examples") / f"model-{seed}"
    if not (folder / "model.safetensors").exists():
        tokenizer = build_tokenizer(TEXTS * 10)
        tokenizer.save_pretrained(folder)
        build_model(tokenizer, hidden_size=64, intermediate_size=128, seed=seed).save_pretrained(
            folder
        )
    return str(folder)
