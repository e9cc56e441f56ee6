"""Evaluate models on the rows of a recipe, compare them, and save the results."""

import json
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.common.adapters import ADAPTER_CONFIG, check_model_folder
from grpo_ext.common.files import write_atomically
from grpo_ext.common.hub import find_repo
from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.common.whole_model import folder_faults
from grpo_ext.environments.start_episodes import beginning
from grpo_ext.evaluation.by_task import compare_by_task
from grpo_ext.evaluation.completions import Row, end_tokens, generate_completions
from grpo_ext.evaluation.evaluate import evaluate
from grpo_ext.evaluation.group_size import advice_on_group_size, best_group_size
from grpo_ext.evaluation.output_files import completions_path
from grpo_ext.evaluation.run_precision import precision_of
from grpo_ext.evaluation.score import Rewards, Sample
from grpo_ext.evaluation.vllm_completions import VllmCompletions, pick_engine
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.rewards.reward_specs import metric_name
from grpo_ext.rewards.run_defaults import set_prompts
from grpo_ext.run.from_recipe import (
    eval_rows,
    guarded_rewards,
    model_init_kwargs,
    named_rewards_and_weights,
    train_rows,
)
from grpo_ext.step.judge import outcome_order


def evaluate_models(
    recipe: Recipe,
    model_names: list[str],
    num_train_rows: int = 0,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate models one after another on a recipe's rows, and compare each with the first.

    Args:
        recipe: the recipe, which determines the rows and rewards (see `rows_and_rewards`).
        model_names: the folders or hub ids of the models.
        num_train_rows: the maximum number of training rows to use; 0 uses the held-out rows.
        settings: keyword arguments for `evaluate_on`: `engine`, `batch_size`, `num_samples` and
            `temperature`.

    Returns:
        A dict with the keys

        - `rows`: the evaluated rows.
        - `outcomes`: the names of the outcome rewards, from `outcomes_of`.
        - `summaries` and `samples`: the results of `evaluate`, by model.
        - `comparisons`: for each later model, the differences from `compare_by_task`, with the
          names of both models under `model` and `against`.
        - `advice`: one line on `num_generations` for each model. It is empty unless completions
          of training rows were sampled. If they were, each summary also has
          `best_num_generations`: the fields of a `GroupSize`, or `None` if there is no signal.

    Raises:
        ValueError: if a model, the rows, a reward or the engine cannot be used.
        OSError: if a model or the rows cannot be found or loaded.
        EnvironmentFailure, RewardFailure: if the environment or a reward failed too often.
    """
    check_models(model_names)
    rows, rewards = rows_and_rewards(recipe, num_train_rows)
    outcomes = outcomes_of(recipe)
    summaries = {}
    samples = {}
    advice: dict[str, str] = {}
    for name in model_names:
        summary, parts = evaluate_on(recipe, name, rows, rewards, **settings)
        if num_train_rows and "sampled" in parts:
            k = summary["sampled"]["num_samples"]
            size = best_group_size(parts["sampled"], outcomes, k)
            summary["best_num_generations"] = None if size is None else asdict(size)
            advice[name] = advice_on_group_size(size, k, recipe.training.num_generations)
        summaries[name] = summary
        samples[name] = parts
    first, *later = model_names
    comparisons = []
    for name in later:
        differences = compare_by_task(
            rows,
            samples[first],
            samples[name],
            list(rewards),
            outcomes,
        )
        comparisons.append({"model": name, "against": first, **differences})
    return {
        "rows": rows,
        "outcomes": outcomes,
        "summaries": summaries,
        "samples": samples,
        "comparisons": comparisons,
        "advice": advice,
    }


def check_models(model_names: list[str]) -> None:
    """Check that each model can be found, and that no model folder is damaged or unsafe to load.

    Call this before the first model is evaluated.

    Args:
        model_names: the folders or hub ids of the models; a folder may hold an adapter.

    Raises:
        ValueError: if a model is named twice, or if a folder is damaged or unsafe to load.
        FileNotFoundError: if a model is neither a folder nor in the cache nor on the hub.
        ConnectionError: if a model must be looked up on the hub, but the hub cannot be reached.
        OSError: if a folder cannot be listed or has too many entries.
    """
    for name in model_names:
        if model_names.count(name) > 1:
            raise ValueError(f"the model {name} is given more than once. Pass each model once.")
    for name in model_names:
        folder = Path(name)
        if not folder.is_dir():
            find_repo(name, "model")
        elif (folder / ADAPTER_CONFIG).is_file():
            check_model_folder(folder)
        else:
            for fault in folder_faults(folder):
                raise ValueError(fault)


def rows_and_rewards(recipe: Recipe, num_train_rows: int = 0) -> tuple[list[Row], Rewards]:
    """Return the evaluation rows and the recipe's guarded rewards by name, without reward models.

    The rows are the held-out ones or, if `num_train_rows` is above 0, at most that many random
    training rows.

    Raises:
        ValueError: if there are no such rows, a reward is unknown or has an invalid option, or a
            reward reads a column that the rows lack.
        OSError: if the dataset, or the tokenizer for a length limit, cannot be found or loaded.
    """
    if num_train_rows:
        shuffled = train_rows(recipe).shuffle(seed=recipe.get("seed"))
        dataset = shuffled.take(num_train_rows)
    else:
        dataset = eval_rows(recipe)
    rewards, _ = guarded_rewards(recipe, dataset.column_names)
    set_prompts(rewards, dataset)
    functions = {reward.__name__: reward for reward in rewards if callable(reward)}
    return list(dataset), functions


def save_evaluation(path: Path, results: dict[str, Any]) -> list[Path]:
    """Write the results of `evaluate_models` to two files, and return their paths.

    `path` receives the metrics as JSON. If there is one model, they are its summary; if there are
    several, they are a mapping with `models` and `comparisons`. `<stem>_completions.jsonl` in the
    same folder receives every completion with its row, its rewards, its `part` (`greedy` or
    `sampled`), the messages of an episode, and, if there are several models, its `model`.
    """
    summaries = results["summaries"]
    several_models = len(summaries) > 1
    lines = []
    for model_name, parts in results["samples"].items():
        model = {"model": model_name} if several_models else {}
        for part, samples in parts.items():
            for sample in samples:
                row = results["rows"][sample.row]
                fields = logged_fields(sample)
                line = {**row, **model, "part": part, **fields}
                lines.append(json.dumps(line, ensure_ascii=False))
    completions = completions_path(path)
    write_atomically(completions, "\n".join(lines) + "\n")
    if several_models:
        figures = {"models": summaries, "comparisons": results["comparisons"]}
    else:
        [figures] = summaries.values()
    write_atomically(path, json.dumps(figures, indent=2) + "\n")
    return [path, completions]


def logged_fields(sample: Sample) -> dict[str, Any]:
    """Return the fields of a sample that are not `None`, without its token ids and counts.

    The fields of an episode, such as its messages, are named as in `samples.jsonl`.
    """
    fields = asdict(replace(sample, ids=None, counts=None))
    fields |= fields.pop("episode") or {}
    return {name: field for name, field in fields.items() if field is not None}


def outcomes_of(recipe: Recipe) -> list[str]:
    """Return the names of the rewards that decide whether a row is solved, most important first.

    They are in the order of `outcome_order`. Reward models are left out.

    Raises:
        ValueError: if a reward is unknown, an option or a weight is invalid, or
            `group_filter_metric` names no reward.
    """
    rewards, weights = named_rewards_and_weights(recipe)
    names = list(map(metric_name, rewards))
    order = outcome_order(names, weights, recipe.get("group_filter_metric"))
    return [names[index] for index in order if callable(rewards[index])]


def evaluate_on(
    recipe: Recipe,
    model_name: str,
    rows: list[Row],
    rewards: Rewards,
    *,
    engine: str = "transformers",
    batch_size: int = 64,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, list[Sample]]]:
    """Load a model with the settings of the recipe, and evaluate it on `rows`.

    Args:
        recipe: the recipe; it sets how the model is loaded and how long completions may be.
        model_name: a folder or a hub id.
        rows: the rows, with `prompt` and the columns that the rewards read; at least one.
        rewards: the rewards by name.
        engine: `transformers`, `vllm` or `auto` (see `pick_engine`).
        batch_size: the number of completions that transformers decodes at once.
        settings: keyword arguments for `evaluate`: `num_samples` and `temperature`.

    Returns:
        The summary and the samples from `evaluate`.

    Raises:
        ValueError: if the prompts are messages and the tokenizer has no chat template, if the
            engine cannot be used, if `max_completion_length` is null with transformers, if the
            model does not support the recipe's environment or precision, or if several completions
            are to be sampled at temperature 0.
        OSError: if the model cannot be loaded.
        EnvironmentFailure, RewardFailure: if the environment or a reward failed too often.
    """
    training = recipe.training
    environments = environments_of(training)
    engine = pick_engine(engine, model_name, training.use_cpu, environments)
    if engine != "vllm" and training.max_completion_length is None:
        raise ValueError(
            "max_completion_length is null, so transformers would end completions after 20 "
            "tokens. Set max_completion_length to a number."
        )
    tokenizer = load_tokenizer(recipe, model_name)
    if not tokenizer.chat_template and not isinstance(rows[0]["prompt"], str):
        raise ValueError(
            f"the tokenizer of {model_name} has no chat template, but the prompts are chat "
            "messages. Use an instruct model, or put a chat_template.jinja next to the tokenizer."
        )
    # both already parsed as mappings
    template_options: Any = training.chat_template_kwargs
    generation_options: Any = training.generation_kwargs
    settings |= {"max_new_tokens": training.max_completion_length, "seed": training.seed}
    settings["stop_strings"] = stop_strings_of(generation_options)
    settings["constants"] = training.eval_constant and not environments
    if engine == "vllm":
        init = init_kwargs(recipe, model_name)
        options = {
            "revision": init.get("revision"),
            "trust_remote_code": training.trust_remote_code,
            "seed": training.seed,
        }
        max_length = training.vllm_max_model_length
        completions = VllmCompletions(
            model_name,
            tokenizer,
            init["dtype"],
            max_length,
            template_options,
            **options,
        )
        with closing(completions):
            return evaluate(completions, rows, rewards, outcomes_of(recipe), **settings)
    model = load_model(recipe, model_name)
    ends = end_tokens(tokenizer, model.generation_config)
    begin = None
    if environments:
        begin = beginning(environments, tokenizer, ends, training)
    by_model = partial(
        generate_completions,
        model,
        tokenizer,
        precision=precision_of(recipe, model),
        batch_size=batch_size,
        fast=training.fast_generate,
        chat_template_kwargs=template_options,
        begin=begin,
    )
    return evaluate(by_model, rows, rewards, outcomes_of(recipe), **settings)


def load_tokenizer(recipe: Recipe, model_name: str) -> Any:
    """Load a model's tokenizer, set to pad on the left."""
    return AutoTokenizer.from_pretrained(
        model_name,
        revision=init_kwargs(recipe, model_name).get("revision", "main"),
        padding_side="left",
        trust_remote_code=recipe.training.trust_remote_code,
    )


def load_model(recipe: Recipe, model_name: str) -> Any:
    """Load a model with the recipe's settings.

    The model is moved to a GPU if one is available and `use_cpu` is not set.
    """
    training = recipe.training
    model: Any = AutoModelForCausalLM.from_pretrained(
        model_name,
        trust_remote_code=training.trust_remote_code,
        **init_kwargs(recipe, model_name),
    )
    has_gpu = torch.cuda.is_available() and not training.use_cpu
    return model.to("cuda" if has_gpu else "cpu")


def init_kwargs(recipe: Recipe, model_name: str) -> dict[str, Any]:
    """Return the keyword arguments for loading a model.

    The recipe's revision is included only if `model_name` is the recipe's model.
    """
    init = model_init_kwargs(recipe)
    if model_name != recipe.model.model_name_or_path:
        init.pop("revision")
    return init
