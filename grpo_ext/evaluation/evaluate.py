"""One evaluation of one model: greedy, and the mean of several samples, on the same held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo_ext.evaluation.completions import Completion, Decoding
from grpo_ext.evaluation.score import Rewards, Sample, outcome_figures, score_completions, summarize

Complete = Callable[..., list[list[Completion]]]


def evaluate(
    complete: Complete,
    rows: list[dict[str, Any]],
    rewards: Rewards,
    outcome_reward: str,
    *,
    max_new_tokens: int,
    num_samples: int = 8,
    temperature: float = 1.0,
    seed: int = 0,
    progress: bool = True,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """Evaluate greedily and by sampling.

    Args:
        complete: prompts, how to decode and `progress`, the title of a bar or `None`, to a list of completions a prompt; such
            as `generate_completions` of a model and a tokenizer.
        rows: held-out examples with `prompt` and the rewards' columns.
        rewards: name to callable.
        outcome_reward: the reward that pass@k is about.
        max_new_tokens: longest completion, in tokens.
        num_samples: samples a row for the sampled figures; 0 leaves them out.
        temperature: of the sampled figures.

    Returns:
        The summary, `{"n": 193, "greedy": {"countdown": 0.27, "countdown_se": 0.03, ..., "length": 28.1, "pass@1": 0.27},
        "sampled": {"num_samples": 8, "temperature": 1.0, ..., "pass@8": 0.6, "pass@8_se": 0.03}}`, and the samples behind
        each part.
    """
    prompts = [row["prompt"] for row in rows]
    settings = {"greedy": Decoding(max_new_tokens, seed=seed)}
    if num_samples:
        settings["sampled"] = Decoding(max_new_tokens, temperature, num_samples=num_samples, seed=seed)
    summary: dict[str, Any] = {"n": len(rows)}
    samples: dict[str, list[Sample]] = {}
    for part, decoding in settings.items():
        completions = complete(prompts, decoding, progress=f"evaluate, {part}" if progress else None)
        samples[part] = score_completions(rows, completions, rewards)
        how = {} if part == "greedy" else {"num_samples": num_samples, "temperature": temperature}
        summary[part] = how | summarize(samples[part], list(rewards))
        if outcome_reward in rewards:
            summary[part] |= outcome_figures(samples[part], outcome_reward, decoding.num_samples)
    return summary, samples
