"""Short runs from Python and from a recipe, with rewards that teach nothing."""

from __future__ import annotations

import json

import yaml
from datasets import Dataset
from transformers import (
    AutoTokenizer,
)

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.train import main

SETTINGS = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "logging_steps": 1,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "eval_strategy": "no",
}

REWARDS = """
import random


def zero(completions, **kwargs):
    return [0.0] * len(completions)


def one(completions, **kwargs):
    return [1.0] * len(completions)


def lengths(completions, **kwargs):
    return [float(len(str(text))) for text in completions]


def varied(completions, **kwargs):
    return [random.random() for _ in completions]


def silent(completions, **kwargs):
    return [None] * len(completions)


def broken(completions, **kwargs):
    raise RuntimeError("a bug")


def fails_mostly(completions, number, **kwargs):
    if any(n % 4 for n in number):
        raise RuntimeError("a bug")
    return [random.random() for _ in completions]


def no_rest(completions):
    return [0.0] * len(completions)
"""


def rows():
    return [{"prompt": f"Count to {number}.", "number": number} for number in range(16)]


def run_python(tiny_folder, out, rewards, model=None, more=None, **settings):
    args = GRPOExtConfig(output_dir=str(out), **{**SETTINGS, **settings})
    trainer = GRPOExtTrainer(
        str(tiny_folder) if model is None else model,
        rewards,
        args,
        Dataset.from_list(rows()),
        processing_class=AutoTokenizer.from_pretrained(tiny_folder, padding_side="left"),
        **(more or {}),
    )
    trainer.train()
    return trainer


def run_recipe(tiny_folder, out, rewards, **settings):
    """Return the exit code of the program `train`."""
    out.mkdir()
    (out / "mine.py").write_text(REWARDS)
    (out / "rows.jsonl").write_text("\n".join(map(json.dumps, rows())))
    recipe = {
        **SETTINGS,
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(out / "run"),
        "task": "prompts",
        "dataset_name": str(out / "rows.jsonl"),
        "reward_funcs": [f"{out}/mine.py:{name}" for name in rewards],
        **settings,
    }
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return main(["--config", str(out / "recipe.yaml")])


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
