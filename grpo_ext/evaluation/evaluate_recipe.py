"""An evaluation as a recipe describes it: its held-out rows, its rewards, models by name."""

from __future__ import annotations

from typing import Any

import torch

from grpo_ext.evaluation.compare import compare
from grpo_ext.evaluation.evaluate import evaluate, evaluate_model
from grpo_ext.evaluation.score import Rewards, Sample
from grpo_ext.evaluation.vllm_completions import VllmCompletions, pick_engine
from grpo_ext.recipe.load import Recipe
from grpo_ext.run.parts import eval_rows, guarded_rewards, model_init_kwargs, named_rewards_and_weights
from grpo_ext.step.judge import outcome_index


def evaluate_recipe(
    recipe: Recipe, model_name: str, **settings: Any
) -> tuple[dict[str, Any], dict[str, list[Sample]], list[dict[str, Any]]]:
    """Evaluate the model `model_name` on the recipe's held-out rows.

    Args:
        settings: passed on to `evaluate_on`.

    Returns:
        The summary, the samples behind it, and the rows.
    """
    rows, rewards = held_out(recipe)
    summary, samples = evaluate_on(recipe, model_name, rows, rewards, **settings)
    return summary, samples, rows


def held_out(recipe: Recipe) -> tuple[list[dict[str, Any]], Rewards]:
    """The recipe's held-out rows, and its rewards by name."""
    dataset = eval_rows(recipe)
    rewards, _ = guarded_rewards(recipe, dataset.column_names)
    return list(dataset), {reward.__name__: reward for reward in rewards if callable(reward)}


def outcome_of(recipe: Recipe) -> str:
    """The reward that says whether a row is solved: `eval_outcome_reward`, the task's own, or that of the largest weight."""
    if named := recipe.get("eval_outcome_reward") or recipe.task.outcome_reward:
        return named
    rewards, weights = named_rewards_and_weights(recipe)
    names = [getattr(reward, "__name__", str(reward)) for reward in rewards]
    return names[outcome_index(names, weights, None)]


def evaluate_on(
    recipe: Recipe,
    model_name: str,
    rows: list[dict[str, Any]],
    rewards: Rewards,
    *,
    engine: str = "transformers",
    batch_size: int = 64,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """Load the model `model_name` as the recipe loads its own, and evaluate it on `rows`.

    Args:
        engine: what completes the prompts, one of `ENGINES`.
        batch_size: completions that transformers decodes at once.
        settings: passed on to `evaluate`.

    Raises:
        ValueError: if its tokenizer has no chat template and the rows are chats, or the engine cannot be used.
    """
    from transformers import AutoTokenizer

    training = recipe.training
    engine = pick_engine(engine, model_name, training.use_cpu)
    trust = training.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left", trust_remote_code=trust)
    if not tokenizer.chat_template and not isinstance(rows[0]["prompt"], str):
        raise ValueError(f"the tokenizer of {model_name} has no chat template, and the task writes chat messages.")
    settings |= {"max_new_tokens": training.max_completion_length, "seed": training.seed}
    if engine == "vllm":
        init = init_of(recipe, model_name)
        options = {"revision": init.get("revision"), "trust_remote_code": trust, "seed": training.seed}
        complete = VllmCompletions(model_name, tokenizer, init["dtype"], training.vllm_max_model_length, **options)
        try:
            return evaluate(complete, rows, rewards, outcome_of(recipe), **settings)
        finally:
            complete.close()
    settings |= {"batch_size": batch_size, "fast": training.fast_generate}
    return evaluate_model(load_model(recipe, model_name), tokenizer, rows, rewards, outcome_of(recipe), **settings)


def load_model(recipe: Recipe, model_name: str) -> Any:
    """A transformers model as the recipe loads its own, on the GPU where there is one and the recipe lets it be used."""
    from transformers import AutoModelForCausalLM

    trust, cpu = recipe.training.trust_remote_code, recipe.training.use_cpu
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_name, trust_remote_code=trust, **init_of(recipe, model_name)
    )
    return model.to("cuda" if torch.cuda.is_available() and not cpu else "cpu")


def init_of(recipe: Recipe, model_name: str) -> dict[str, Any]:
    """How the model is loaded; the recipe's `model_revision` is of its own model alone."""
    init = model_init_kwargs(recipe)
    if model_name != recipe.model.model_name_or_path:
        init.pop("revision")
    return init


def evaluate_models(recipe: Recipe, model_names: list[str], **settings: Any) -> dict[str, Any]:
    """Evaluate several models on the same rows, one after the other, and compare each with the first.

    Args:
        model_names: folders or hub ids, each once.
        settings: passed on to `evaluate_on`.

    Returns:
        `rows`; by model `summaries` and `samples`; `comparisons`, what `compare` gives with `model` and `against`.

    Raises:
        ValueError: if a model is named twice.
    """
    if len(set(model_names)) < len(model_names):
        raise ValueError("a model is named twice: name each once.")
    rows, rewards = held_out(recipe)
    summaries, samples = {}, {}
    for name in model_names:
        summaries[name], samples[name] = evaluate_on(recipe, name, rows, rewards, **settings)
    first, *others = model_names
    comparisons = [
        {"model": name, "against": first, **compare(samples[first], samples[name], list(rewards), outcome_of(recipe))}
        for name in others
    ]
    return {"rows": rows, "summaries": summaries, "samples": samples, "comparisons": comparisons}
