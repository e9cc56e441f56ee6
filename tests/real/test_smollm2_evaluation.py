"""Evaluation and the demo of a pretrained model."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from grpo_ext.demo.demos import REAL
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
    "beside": {"num_test_problems": 2, "max_completion_length": 8},
}


def test_the_demo_runs_and_measures_texts_and_word_problems(smollm2, tmp_path):
    names = {}
    for field, sizes in SIZES.items():
        names[field] = str(small_recipe(getattr(REAL, field), tmp_path, sizes))
    run_demo(replace(REAL, num_samples=1, **names), tmp_path / "real")
    for when in ("before", "after"):
        figures = json.loads((tmp_path / "real" / f"eval_{when}.json").read_text())
        assert figures["n"] == 4
        for part in ("greedy", "sampled"):
            assert 0 <= figures[part]["ended"] <= 1
            assert figures[part]["words"] > 0
            assert math.isfinite(figures[part]["first_model_logp"])
        beside = json.loads((tmp_path / "real" / f"beside_{when}.json").read_text())
        assert beside["n"] == 2 and "accuracy" in beside["greedy"]
