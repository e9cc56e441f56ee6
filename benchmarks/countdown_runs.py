"""Train the model of the Countdown demo on its task, with TRL's trainer or with ours.

The figures in `README.md` and `results/` come from the settings in this file, not from those of the
demo: a warm start on attempts in random order, after which the model repeats attempts; 80 steps;
and a limit of 72 tokens, which truncates many answers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import checked_launch, words
from grpo_ext.evaluation.evaluate_recipe import evaluate_models
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe, load_recipe, load_sft_recipe
from grpo_ext.run.from_recipe import named_rewards_and_weights, train_rows
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import Demonstration, chains
from tests.support.logs import entries_with


def unordered_demonstrations(
    task: Countdown, count: int, *, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield demonstrations with up to four attempts in random order.

    After each failed attempt, a demonstration gives up with probability 0.6.
    """
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        target = problem["target"]
        by_value = chains(tuple(sorted(nums)), task.operators)
        untried = sorted(by_value)
        written = []
        done = False
        while not done:
            value = target if target in untried and rng.random() < 0.1 else rng.choice(untried)
            untried.remove(value)
            steps, equation = rng.choice(by_value[value])
            written.append(f"{steps} {'yes' if value == target else 'no'}")
            done = value == target or not untried or len(written) == 4 or rng.random() < 0.6
        text = f"<think>\n{'; '.join(written)}\n</think>\n<answer>\n{equation}\n</answer>"
        prompt = task.prompt({"nums": nums, "target": target})
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": text}]}


DEMO = replace(DEMOS["countdown"], demonstrations=unordered_demonstrations, count=12_800)
RECIPE = recipe_folder() / DEMO.recipe
SFT_STEPS = 400
GRPO = {"max_completion_length": 72, "learning_rate": 4e-4, "warmup_steps": 8, "max_steps": 80}
PROCESS = {"sampler": "process", "behaviour_policy": "sampler"}
STILL = {
    "learning_rate": 1e-6,
    "warmup_steps": 0,
}  # too small a rate to change what is sampled: all runs do the same work


def warm_start(folder: Path, seed: int = 0, steps: int = SFT_STEPS) -> Path:
    """Return the model that GRPO starts from: made in about a minute, once per folder."""
    done = folder / "warm_start"
    if not (done / "config.json").exists():
        DEMO.prepare(
            load_recipe(RECIPE, words(model_name_or_path=folder / "model")).task, folder, seed
        )
        data = {
            "model_name_or_path": folder / "model",
            "dataset_name": folder / "demonstrations.jsonl",
        }
        sft = words(**data, output_dir=done, seed=seed, max_steps=steps)
        path = recipe_folder() / DEMO.sft_recipe
        checked_launch("grpo_ext.sft", path, sft, load_sft_recipe(path, sft))
    logging.disable(logging.WARNING)
    return done


def recipe_for(model: Path, out: Path | str, **settings: Any) -> Recipe:
    """Return the demo's recipe with `GRPO`, without evaluations and checkpoints during training."""
    quiet = {
        "eval_strategy": "no",
        "eval_on_start": False,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return load_recipe(
        RECIPE, words(model_name_or_path=model, output_dir=out, **{**quiet, **GRPO, **settings})
    )


def in_a_process(module: str, given: list[str], threads: int) -> Any:
    """Run a module in a process with this many threads, and return the JSON that it prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", module, *given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def train(
    side: str, recipe: Recipe, callbacks: list[TrainerCallback] | None = None
) -> list[dict[str, float]]:
    """Train by the recipe, with "TRL" or "ours", and save the model.

    Return the logs, one row per step.
    """
    rewards, recipe.training.reward_weights = named_rewards_and_weights(recipe)
    model: Any = recipe.model.model_name_or_path  # never None: a recipe without it is refused
    trainer: Any = (GRPOExtTrainer if side == "ours" else GRPOTrainer)(
        model, rewards, recipe.training, train_rows(recipe), callbacks=callbacks
    )
    trainer.train()
    trainer.save_model()
    return entries_with(trainer, "reward")


def accuracy(recipe: Recipe, model: Path | str, num_samples: int = 4) -> dict[str, float]:
    """Return held-out results: shares solved greedily and by sampling, and mean tokens."""
    [summary] = evaluate_models(recipe, [str(model)], num_samples=num_samples, batch_size=256)[
        "summaries"
    ].values()
    greedy = summary["greedy"]
    sampled = summary["sampled"]
    return {
        "greedy": greedy["countdown"],
        "sampled": sampled["countdown"],
        "length": sampled["length"],
    }
