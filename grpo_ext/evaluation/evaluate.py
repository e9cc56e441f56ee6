"""One evaluation of one model: greedy, and the mean of several samples, on the same held-out rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_ext.common.files import write_atomically
from grpo_ext.evaluation.completions import Completion, Decoding, generate_completions
from grpo_ext.evaluation.score import Rewards, Sample, outcome_figures, score_completions, summarize

Complete = Callable[[list[Any], Decoding, str | None], list[list[Completion]]]


def evaluate_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict[str, Any]],
    rewards: Rewards,
    outcome_reward: str,
    *,
    batch_size: int = 64,
    fast: bool = True,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """`evaluate` with the completions of a transformers model.

    Args:
        batch_size: completions decoded at once.
        fast: read each distinct prompt once, and decode no completion beyond its end.
    """

    def complete(prompts: list[Any], decoding: Decoding, progress: str | None) -> list[list[Completion]]:
        decoding = replace(decoding, fast=fast)
        return generate_completions(model, tokenizer, prompts, decoding, batch_size=batch_size, progress=progress)

    return evaluate(complete, rows, rewards, outcome_reward, **settings)


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
        complete: prompts, how to decode and the title of a progress bar (or `None`) to a list of completions a prompt.
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
    names = list(rewards)
    settings = {"greedy": Decoding(max_new_tokens, seed=seed)}
    if num_samples:
        settings["sampled"] = Decoding(max_new_tokens, temperature, num_samples=num_samples, seed=seed)
    summary: dict[str, Any] = {"n": len(rows)}
    samples: dict[str, list[Sample]] = {}
    for part, decoding in settings.items():
        completions = complete(prompts, decoding, f"evaluate, {part}" if progress else None)
        samples[part] = score_completions(rows, completions, rewards)
        summary[part] = summarize(samples[part], names)
    if num_samples:
        summary["sampled"] = {"num_samples": num_samples, "temperature": temperature, **summary["sampled"]}
    for part in samples if outcome_reward in rewards else ():
        summary[part] |= outcome_figures(samples[part], outcome_reward, settings[part].num_samples)
    return summary, samples


def save_evaluation(
    path: Path, summary: dict[str, Any], samples: dict[str, list[Sample]], rows: list[dict[str, Any]]
) -> None:
    """Write `path` (the summary) and, beside it, `<stem>_completions.jsonl`: one greedy completion a row with its rewards."""
    lines = [json.dumps({**rows[s.row], **asdict(s)}, ensure_ascii=False) for s in samples["greedy"]]
    write_atomically(path.with_name(f"{path.stem}_completions.jsonl"), "\n".join(lines) + "\n")
    write_atomically(path, json.dumps(summary, indent=2) + "\n")
