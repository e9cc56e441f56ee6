"""What must hold between the values of a recipe: batch arithmetic, and options that contradict each other.

Each rule is a short function of the values that yields problems. Rules see only what can be known without a GPU; the number
of processes is the launcher's, or what the accelerate config says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from grpo_ext.recipe.folder import accelerate_config
from grpo_ext.recipe.problems import Problem

Values = dict[str, Any]
Rule = Callable[[Values, int], Iterator[Problem]]


def check_values(
    values: dict[str, Values], rules: tuple[Rule, ...], places: dict[str, str | None], num_processes: int | None = None
) -> list[Problem]:
    """All problems between the values of a recipe.

    Args:
        values: what was set, by part of the recipe.
        rules: `GRPO_RULES` or `SFT_RULES`.
        places: where each key was set.
        num_processes: how many will train; `None`: as many as the launcher started.
    """
    flat = {key: value for part in values.values() for key, value in part.items()}
    num_processes = num_processes or int(os.environ.get("WORLD_SIZE", 0)) or launched_processes(flat)
    problems = [p for rule in rules for p in rule(flat, num_processes)]
    return [Problem(p.message, p.key, places.get(p.key)) for p in problems]


def launched_processes(v: Values) -> int:
    """How many processes the accelerate config that a recipe names would start; 1 without one."""
    if not v.get("accelerate_config"):
        return 1
    try:
        config = yaml.safe_load(accelerate_config(v["accelerate_config"]).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return 1  # told by the launcher
    return (config or {}).get("num_processes", 1)


def _model_is_named(v: Values, _: int) -> Iterator[Problem]:
    if not v.get("model_name_or_path"):
        yield Problem("model_name_or_path is missing: name a model folder or a hub id.", "model_name_or_path")


def _data_is_named(v: Values, _: int) -> Iterator[Problem]:
    if not v.get("dataset_name"):
        yield Problem("dataset_name is missing: name a jsonl, json, csv or parquet file, or a hub id.", "dataset_name")


def _whole_groups(v: Values, num_processes: int) -> Iterator[Problem]:
    if v.get("generation_batch_size") and v.get("steps_per_generation"):
        yield Problem("set generation_batch_size or steps_per_generation, not both.", "generation_batch_size")
        return
    per_device = v.get("per_device_train_batch_size", 8)
    slices = v.get("steps_per_generation") or v.get("gradient_accumulation_steps", 1)
    completions = v.get("generation_batch_size") or per_device * num_processes * slices
    group = v.get("num_generations", 8)
    if completions % group:
        nearest_groups = sorted(
            (g for g in range(2, completions + 1) if completions % g == 0), key=lambda g: abs(g - group)
        )
        yield Problem(
            f"a generation batch has {completions} completions (per_device_train_batch_size {per_device} x "
            f"{num_processes} processes x {slices} slices), which is no multiple of num_generations {group}. "
            f"num_generations that would fit: {', '.join(map(str, sorted(nearest_groups[:3])))}.",
            "num_generations",
        )


def _weights_match(v: Values, _: int) -> Iterator[Problem]:
    rewards, weights = v.get("reward_funcs"), v.get("reward_weights")
    if weights is None:
        return
    if rewards is None:
        yield Problem("reward_weights needs reward_funcs: say which reward each weight is for.", "reward_weights")
    elif len(rewards) != len(weights):
        yield Problem(f"{len(weights)} reward_weights for {len(rewards)} reward_funcs.", "reward_weights")


def _cispo_cap(v: Values, _: int) -> Iterator[Problem]:
    if v.get("loss_type") == "cispo" and (v.get("epsilon_high") or 0) < 1:
        yield Problem(
            "loss_type cispo caps every ratio at epsilon_high, and below 1 that clips all tokens. Write epsilon_high: 5.0 "
            "(ScaleRL, arXiv 2510.13786).",
            "loss_type",
        )


def _reference_is_used(v: Values, _: int) -> Iterator[Problem]:
    if v.get("sync_ref_model") and not v.get("beta"):
        yield Problem("sync_ref_model has no reference to sync: set beta above 0.", "sync_ref_model")


def _evaluation(v: Values, _: int) -> Iterator[Problem]:
    temperature = v.get("eval_temperature")
    strategy = v.get("eval_strategy", "no")
    if v.get("load_best_model_at_end") and str(strategy) == "no":
        yield Problem("load_best_model_at_end needs eval_strategy: steps or epoch.", "load_best_model_at_end")
    if v.get("load_best_model_at_end") and temperature is not None and not v.get("metric_for_best_model"):
        yield Problem(
            "with eval_temperature there is no eval_loss to choose by: write metric_for_best_model: countdown (or another "
            "reward) and greater_is_better: true.",
            "load_best_model_at_end",
        )
    if temperature is None and v.get("num_generations_eval") == 1:
        yield Problem(
            "num_generations_eval: 1 leaves no group; write eval_temperature: 0 instead.", "num_generations_eval"
        )


def _stream_has_an_end(v: Values, _: int) -> Iterator[Problem]:
    if v.get("dataset_streaming") and v.get("max_steps", -1) <= 0:
        yield Problem("a streamed data set has no length: set max_steps.", "dataset_streaming")


SFT_RULES: tuple[Rule, ...] = (_model_is_named, _data_is_named)
GRPO_RULES: tuple[Rule, ...] = (
    _model_is_named,
    _whole_groups,
    _weights_match,
    _cispo_cap,
    _reference_is_used,
    _evaluation,
    _stream_has_an_end,
)
