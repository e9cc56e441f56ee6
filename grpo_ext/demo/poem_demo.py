"""The poem demo: last lines of quatrains, and a model that knows tones and rhymes but uses them carelessly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_ext.demo.pipeline import Demo, save_start
from grpo_ext.recipe.load import Recipe
from grpo_ext.tasks.poem import Poem
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import CHARACTERS, TAGS
from grpo_ext.tiny.verse import Poet, verse_demonstrations

DEMONSTRATIONS = 9_600
# Less than a token for each character: the rare ones stay in pieces, so that the model has met such when it meets new ones.
VOCAB_SIZE = 1280
SHAPE: dict[str, Any] = {"architecture": "qwen3", "initializer_range": 0.04}


def prepare(recipe: Recipe, folder: Path, seed: int) -> None:
    """Write demonstrations, a tokenizer of characters, and an untrained model."""
    assert isinstance(recipe.task, Poem)
    rows = list(verse_demonstrations(recipe.task, DEMONSTRATIONS, seed=seed))
    save_start(
        folder,
        rows,
        lambda tokenizer: build_model(tokenizer, seed=seed, **SHAPE),
        vocab_size=VOCAB_SIZE,
        pattern=CHARACTERS,
        tags=(*TAGS, *Poet(recipe.task).ends),  # the name of a rhyme group is one token
    )


DEMO = Demo(
    recipe="poem/tiny.yaml",
    sft_recipe="poem/tiny-sft.yaml",
    folder="runs/poem-tiny",
    prepare=prepare,
    prepared_from={"demonstrations": DEMONSTRATIONS, "vocab_size": VOCAB_SIZE, "shape": SHAPE},
)
