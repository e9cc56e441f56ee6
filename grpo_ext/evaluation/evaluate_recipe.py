"""Evaluations: greedy, and the mean of several samples, on the same held-out rows; of a recipe, its rows and rewards, too."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.common.files import write_atomically
from grpo_ext.environments.episode import beginning
from grpo_ext.evaluation.compare import compare
from grpo_ext.evaluation.completions import Completion, Decoding, end_tokens, generate_completions
from grpo_ext.evaluation.score import Rewards, Sample, outcome_figures, score_completions, summarize
from grpo_ext.evaluation.table import markdown
from grpo_ext.evaluation.vllm_completions import VllmCompletions, pick_engine
from grpo_ext.recipe.load import Recipe
from grpo_ext.run.parts import eval_rows, guarded_rewards, model_init_kwargs, named_rewards_and_weights
from grpo_ext.step.judge import outcome_index


def evaluate_models(recipe: Recipe, model_names: list[str], **settings: Any) -> dict[str, Any]:
    """Evaluate models, folders or hub ids, on the recipe's held-out rows, one after the other, and compare each with the first.

    `settings` are of `evaluate_on`: `engine`, `batch_size`, `num_samples`, `temperature`, `progress`. Returns `rows`; by model
    `summaries` and `samples`, as `evaluate` gives them; `comparisons`, what `compare` gives with `model` and `against`.
    `ValueError` if a model is named twice.
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


def held_out(recipe: Recipe) -> tuple[list[dict[str, Any]], Rewards]:
    """The recipe's held-out rows, and its rewards by name."""
    dataset = eval_rows(recipe)
    rewards, _ = guarded_rewards(recipe, dataset.column_names)
    return list(dataset), {reward.__name__: reward for reward in rewards if callable(reward)}


def save_evaluation(path: Path, found: dict[str, Any]) -> list[Path]:
    """Write what `evaluate_models` found: the figures, a page of them, every greedy completion with its rewards.

    `path` is of the figures, as JSON: the summary of a single model, or `models` and `comparisons`. The page lies beside it as
    `<stem>.md`, the completions as `<stem>_completions.jsonl`. Returns the three files.
    """
    rows, summaries, comparisons = found["rows"], found["summaries"], found["comparisons"]
    greedy = {name: parts["greedy"] for name, parts in found["samples"].items()}
    page, completions = path.with_suffix(".md"), path.with_name(f"{path.stem}_completions.jsonl")
    alone = len(summaries) == 1
    figures = next(iter(summaries.values())) if alone else {"models": summaries, "comparisons": comparisons}
    lines = [
        json.dumps({**({} if alone else {"model": name}), **rows[s.row], **asdict(s)}, ensure_ascii=False)
        for name, samples in greedy.items()
        for s in samples
    ]
    texts = {name: [s.text for s in samples] for name, samples in greedy.items()}
    write_atomically(completions, "\n".join(lines) + "\n")
    write_atomically(path, json.dumps(figures, indent=2) + "\n")
    write_atomically(page, markdown(summaries, comparisons, rows, texts))
    return [path, page, completions]


def outcome_of(recipe: Recipe) -> str:
    """The reward that says whether a row is solved: `eval_outcome_reward`, the task's own, or that of the largest weight."""
    if named := recipe.get("eval_outcome_reward") or recipe.task.outcome_reward:
        return named
    rewards, weights = named_rewards_and_weights(recipe)
    names = [getattr(reward, "__name__", str(reward)) for reward in rewards]
    return names[outcome_index(names, weights, None)]


def evaluate(
    complete: Callable[..., list[list[Completion]]],
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
        outcome_reward: the reward that pass@k is about.
        num_samples, temperature: of the sampled figures, which 0 samples a row leave out.

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

    `engine` is what completes the prompts, as `pick_engine` takes it; transformers decodes `batch_size` completions at once.
    `settings` are of `evaluate`. `ValueError` if its tokenizer has no chat template and the rows are chats, or the engine
    cannot be used.
    """
    training = recipe.training
    engine = pick_engine(engine, model_name, training.use_cpu)
    trust = training.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left", trust_remote_code=trust)
    if not tokenizer.chat_template and not isinstance(rows[0]["prompt"], str):
        raise ValueError(f"the tokenizer of {model_name} has no chat template, and the task writes chat messages.")
    settings |= {"max_new_tokens": training.max_completion_length, "seed": training.seed}
    if engine == "vllm" and training.environment:
        raise ValueError("an environment's episodes are played by transformers: write --engine transformers.")
    if engine == "vllm":
        init = init_of(recipe, model_name)
        options = {"revision": init.get("revision"), "trust_remote_code": trust, "seed": training.seed}
        longest = training.vllm_max_model_length
        with closing(VllmCompletions(model_name, tokenizer, init["dtype"], longest, **options)) as complete:
            return evaluate(complete, rows, rewards, outcome_of(recipe), **settings)
    model = load_model(recipe, model_name)
    template_options: Any = training.chat_template_kwargs  # text has become a mapping
    begin = training.environment and beginning(training.environment, tokenizer, end_tokens(tokenizer, model), training)
    by_model = partial(
        generate_completions, model, tokenizer, batch_size=batch_size, fast=training.fast_generate,
        chat_template_kwargs=template_options,
        episode=(lambda i: begin(rows[i])) if begin else None,
    )  # fmt: skip
    return evaluate(by_model, rows, rewards, outcome_of(recipe), **settings)


def load_model(recipe: Recipe, model_name: str) -> Any:
    """A transformers model as the recipe loads its own, on the GPU where there is one and the recipe lets it be used."""
    training, init = recipe.training, init_of(recipe, model_name)
    model: Any = AutoModelForCausalLM.from_pretrained(model_name, trust_remote_code=training.trust_remote_code, **init)
    return model.to("cuda" if torch.cuda.is_available() and not training.use_cpu else "cpu")


def init_of(recipe: Recipe, model_name: str) -> dict[str, Any]:
    """How the model is loaded; the recipe's `model_revision` is of its own model alone."""
    init = model_init_kwargs(recipe)
    if model_name != recipe.model.model_name_or_path:
        init.pop("revision")
    return init
