"""Evaluate two models on the same rows, and compare them pair by pair, like `grpo-ext eval`."""

from __future__ import annotations

from tiny_model import tiny_model

from grpo_ext import load_recipe
from grpo_ext.evaluation.evaluate_recipe import evaluate_models

models = [tiny_model(seed=0), tiny_model(seed=1)]
recipe = load_recipe(
    "countdown/tiny",
    {
        "model_name_or_path": models[0],
        "reward_funcs": ["countdown", {"name": "length", "target": 12, "prefer": "near"}],
        "max_eval_samples": 8,
        "max_completion_length": 24,
    },
)
found = evaluate_models(recipe, models, num_samples=2)
for name, summary in found["summaries"].items():
    print(
        f"{name}: greedy accuracy {summary['greedy']['countdown']:.2f}, length {summary['greedy']['length']:.1f}"
    )
for comparison in found["comparisons"]:
    for reward, d in comparison["sampled"].items():
        print(
            f"{comparison['model']}, {reward}: {d['mean']:+.2f} ({d['low']:+.2f} to {d['high']:+.2f}) over {d['rows']} rows"
        )
