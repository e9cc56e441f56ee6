"""An evaluation as a recipe describes it: its held-out rows, its rewards, a model by name."""

from __future__ import annotations

from typing import Any

import torch

from grpo_ext.evaluation.run import evaluate_model
from grpo_ext.evaluation.score import Sample
from grpo_ext.recipe.load import Recipe
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.rewards.sources import check_columns
from grpo_ext.setup_run import eval_rows, model_init_kwargs, named_rewards_and_weights


def evaluate_recipe(
    recipe: Recipe, model_name: str, **settings: Any
) -> tuple[dict[str, Any], dict[str, list[Sample]], list[dict[str, Any]]]:
    """Evaluate the model `model_name` on the recipe's held-out rows.

    Args:
        settings: passed on to `evaluate_model`.

    Returns:
        The summary, the samples behind it, and the rows.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dataset = eval_rows(recipe)
    rewards, _ = named_rewards_and_weights(recipe)
    check_columns(rewards, dataset.column_names)
    rewards = guard_rewards(rewards, timeout=recipe.get("reward_timeout"))
    by_name = {reward.__name__: reward for reward in rewards if callable(reward)}
    trust = recipe.training.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left", trust_remote_code=trust)
    model = AutoModelForCausalLM.from_pretrained(model_name, trust_remote_code=trust, **model_init_kwargs(recipe))
    model = model.to("cuda" if torch.cuda.is_available() and not recipe.training.use_cpu else "cpu")
    rows = list(dataset)
    summary, samples = evaluate_model(
        model,
        tokenizer,
        rows,
        by_name,
        recipe.task.outcome_reward,
        max_new_tokens=recipe.training.max_completion_length,
        seed=recipe.training.seed,
        fast=recipe.training.fast_generate,
        **settings,
    )
    return summary, samples, rows
