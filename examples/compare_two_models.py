"""Evaluate two models on the same rows, and compare them row by row, as `grpo-ext eval` does."""

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
evaluation = evaluate_models(recipe, models, num_samples=2)
for name, summary in evaluation["summaries"].items():
    greedy = summary["greedy"]
    print(f"{name}: greedy accuracy {greedy['countdown']:.2f}, length {greedy['length']:.1f}")
for comparison in evaluation["comparisons"]:
    for reward, difference in comparison["sampled"].items():
        interval = f"{difference['low']:+.2f} to {difference['high']:+.2f}"
        print(f"{comparison['model']}, {reward}: {difference['mean']:+.2f} ({interval})")
