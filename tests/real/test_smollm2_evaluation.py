"""Evaluation and the demo of a pretrained model."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from grpo_ext.demo.demos import PRETRAINED_DEMOS
from grpo_ext.demo.pipeline import run_demo
from tests.support.recipe_sizes import small_recipe

SIZES = {
    "recipe": {
        "max_steps": 1,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "num_problems": 16,
        "num_test_problems": 4,
    },
    "sft_recipe": {"max_steps": 1, "per_device_train_batch_size": 2},
    "beside": {"num_test_problems": 2, "max_completion_length": 8},
}


def run_small_demo(name, folder):
    """Run a demo with recipes of the sizes above, and return the folder of its files."""
    demo = PRETRAINED_DEMOS[name]
    recipes = {}
    for field, sizes in SIZES.items():
        if recipe := getattr(demo, field):
            recipes[field] = str(small_recipe(recipe, folder, sizes))
    run_demo(replace(demo, num_samples=1, **recipes), folder / name)
    return folder / name


def figures_of(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def test_the_demo_runs_and_measures_texts_and_word_problems(smollm2, tmp_path):
    folder = run_small_demo("real", tmp_path)
    for when in ("before", "after"):
        figures = figures_of(folder, f"eval_{when}")
        assert figures["n"] == 4
        for part in ("greedy", "sampled"):
            assert 0 <= figures[part]["ended"] <= 1
            assert figures[part]["words"] > 0
            assert math.isfinite(figures[part]["first_model_logp"])
        beside = figures_of(folder, f"beside_{when}")
        assert beside["n"] == 2 and "accuracy" in beside["greedy"]


@pytest.mark.parametrize("name, reward", [("real-gsm8k", "accuracy"), ("real-countdown", "format")])
def test_the_demos_of_problems_measure_their_rewards(smollm2, tmp_path, name, reward):
    folder = run_small_demo(name, tmp_path)
    for when in ("before", "after"):
        figures = figures_of(folder, f"eval_{when}")
        assert figures["n"] == 4
        assert 0 <= figures["greedy"][reward] <= 1
