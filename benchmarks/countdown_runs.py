"""Runs of the Countdown demo's model from its warm start, by TRL's trainer or by ours."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.demo.known import DEMOS
from grpo_ext.demo.pipeline import checked_launch, words
from grpo_ext.evaluation.evaluate_recipe import evaluate_models
from grpo_ext.recipe.folder import recipe_folder
from grpo_ext.recipe.load import Recipe, load_recipe, load_sft_recipe
from grpo_ext.run.parts import named_rewards_and_weights, train_rows

DEMO = DEMOS["countdown"]
RECIPE = recipe_folder() / DEMO.recipe


def warm_start(folder: Path, seed: int = 0) -> Path:
    """Return the model that GRPO starts from: made in about a minute, once per folder."""
    done = folder / "warm_start"
    if not (done / "config.json").exists():
        DEMO.prepare(load_recipe(RECIPE, words(model_name_or_path=folder / "model")).task, folder, seed)
        data = {"model_name_or_path": folder / "model", "dataset_name": folder / "demonstrations.jsonl"}
        sft = words(**data, output_dir=done, seed=seed)
        path = recipe_folder() / DEMO.sft_recipe
        checked_launch("grpo_ext.sft", path, sft, load_sft_recipe(path, sft))
    logging.disable(logging.WARNING)
    return done


def recipe_for(model: Path, out: Path | str, **settings: Any) -> Recipe:
    """Return the demo's recipe, without evaluations and checkpoints during training."""
    quiet = {"eval_strategy": "no", "eval_on_start": False, "save_strategy": "no", "disable_tqdm": True}
    return load_recipe(RECIPE, words(model_name_or_path=model, output_dir=out, **{**quiet, **settings}))


def train(
    side: str, recipe: Recipe, callbacks: list[TrainerCallback] | None = None, sampled: list[float] | None = None
) -> list[dict[str, float]]:
    """Train by the recipe, with "TRL" or "ours", and save the model; return the logs, one row per step.

    `sampled` gets the seconds of each generation of a separate sampler.
    """
    rewards, recipe.training.reward_weights = named_rewards_and_weights(recipe)
    model: Any = recipe.model.model_name_or_path  # never None: a recipe without it is refused
    trainer: Any = (GRPOExtTrainer if side == "ours" else GRPOTrainer)(
        model, rewards, recipe.training, train_rows(recipe), callbacks=callbacks
    )
    if sampled is not None and side == "ours":
        sampler = trainer.parts.sampler
        collect = sampler.collect

        def noted() -> Any:
            found = collect()
            sampled.append(sampler.seconds)
            return found

        sampler.collect = noted
    trainer.train()
    trainer.save_model()
    return [row for row in trainer.state.log_history if "reward" in row]


def accuracy(recipe: Recipe, model: Path | str, num_samples: int = 4) -> dict[str, float]:
    """Return held-out results: share solved greedily, mean share of sampled attempts, and their mean length in tokens."""
    [summary] = evaluate_models(recipe, [str(model)], num_samples=num_samples, batch_size=256)["summaries"].values()
    greedy, sampled = summary["greedy"], summary["sampled"]
    return {"greedy": greedy["countdown"], "sampled": sampled["countdown"], "length": sampled["length"]}
