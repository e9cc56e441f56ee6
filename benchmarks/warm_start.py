"""The Countdown demo's model after its warm start, where GRPO begins: about a minute, made once a folder."""

from __future__ import annotations

from pathlib import Path

from grpo_ext.demo.countdown import DEMO
from grpo_ext.demo.pipeline import checked_launch, words
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import load_recipe

RECIPE = recipe_folder() / DEMO.recipe


def countdown_warm_start(folder: Path, seed: int = 0) -> Path:
    """The model's folder."""
    done = folder / "warm_start"
    if not (done / "config.json").exists():
        DEMO.prepare(load_recipe(RECIPE, words(model_name_or_path=folder / "model")), folder, seed)
        data = {"model_name_or_path": folder / "model", "dataset_name": folder / "demonstrations.jsonl"}
        checked_launch(
            "grpo_ext.sft", recipe_folder() / DEMO.sft_recipe, words(**data, output_dir=done, seed=seed), "cpu"
        )
    return done
