"""Pass rates of a recipe's training prompts before training."""

from collections import Counter
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from grpo_ext.curriculum.pass_rates import PassCount, prompt_id
from grpo_ext.evaluation.completions import Decoding, generate_completions
from grpo_ext.evaluation.evaluate_recipe import load_model
from grpo_ext.evaluation.score import Sample, score_completions
from grpo_ext.recipe.load import Recipe
from grpo_ext.run.parts import guarded_rewards, train_rows
from grpo_ext.step.judge import outcome_index


def probe_recipe(
    recipe: Recipe, model_name: str, num_prompts: int, num_samples: int, batch_size: int = 64
) -> tuple[str, list[PassCount], float]:
    """Complete random training prompts, by the recipe's `seed`, as training does, and count what the outcome reward solves.

    Returns the reward's name, the counts, and the mean length of completions in tokens. `ValueError` if it scored none.
    """
    args = recipe.training
    if args.environment:
        raise ValueError("pass rates are counted by prompt, and the games of an environment differ by their seed.")
    rows = list(train_rows(recipe).shuffle(seed=args.seed).take(num_prompts))  # a stream is shuffled within a buffer
    rewards, weights = guarded_rewards(recipe, list(rows[0]))
    names = [getattr(reward, "__name__", str(reward)) for reward in rewards]
    outcome = outcome_index(names, weights, args.group_filter_metric)
    trust, truncation = args.trust_remote_code, (args.top_p, args.top_k, args.min_p)
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left", trust_remote_code=trust)
    longest = recipe.get("max_completion_length")
    decoding = Decoding(longest, args.temperature, *truncation, num_samples, args.seed)
    prompts, model = [row["prompt"] for row in rows], load_model(recipe, model_name)
    completions = generate_completions(
        model, tokenizer, prompts, decoding, batch_size=batch_size, fast=args.fast_generate, progress="probe"
    )
    samples = score_completions(rows, completions, {names[outcome]: rewards[outcome]})
    counts = count_right(rows, samples, names[outcome], args.pass_threshold)
    if not counts:
        raise ValueError(f"The reward {names[outcome]} scored none of the {len(samples)} completions.")
    return names[outcome], counts, sum(sample.length for sample in samples) / len(samples)


def count_right(rows: list[dict[str, Any]], samples: list[Sample], name: str, threshold: float) -> list[PassCount]:
    """Return the counts by prompt of scores of the reward `name`, without prompts that have no score."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        if (score := sample.rewards[name]) is not None:
            found.setdefault(prompt_id(rows[sample.row]["prompt"]), []).append(score)
    counts = []
    for key, scores in found.items():
        equal = tuple(Counter(map(np.float32, scores)).values())
        counts.append(PassCount(key, sum(score >= threshold for score in scores), len(scores), equal))
    return counts
