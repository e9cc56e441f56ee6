"""Evaluation inside a training run: decode the policy on held-out prompts and leave training exactly as it was."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from torch import nn
from trl.models import unwrap_model_for_generation

from grpo_ext.evaluation.generate import Completion, Decoding, generate_completions
from grpo_ext.evaluation.score import Sample, mean_and_error, score_completions
from grpo_ext.trainer.rewards import settle_failures

if TYPE_CHECKING:
    from grpo_ext.trainer.trainer import GRPOExtTrainer


def evaluate_policy(trainer: GRPOExtTrainer, eval_dataset: Any, temperature: float, prefix: str) -> dict[str, float]:
    """Decode every held-out prompt once, score it, log the means.

    The rows are shared out over the ranks. Decoding is the model's own `generate`, also where training samples through
    vLLM. Its random state is its own, so that training is the same with evaluation on and off.

    Args:
        eval_dataset: a data set, a mapping of named ones, or `None` for the trainer's own.
        temperature: of decoding; 0 is greedy.
        prefix: of the metrics' names.
    """
    datasets = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if datasets is None:
        raise ValueError("There is nothing to evaluate on: pass an eval_dataset.")
    if isinstance(datasets, dict):
        parts = [
            evaluate_policy(trainer, dataset, temperature, f"{prefix}_{name}") for name, dataset in datasets.items()
        ]
        return {key: value for part in parts for key, value in part.items()}
    start = time.perf_counter()
    rows = list(datasets)
    samples = _decode_and_score(trainer, rows, temperature)
    trainer.hand_out_evaluation(samples, rows, prefix.removeprefix("eval_"))
    metrics = _means(samples, prefix)
    metrics[f"{prefix}_runtime"] = round(time.perf_counter() - start, 3)
    trainer.log_evaluation(dict(metrics))
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics


def _decode_and_score(trainer: GRPOExtTrainer, rows: list[dict[str, Any]], temperature: float) -> list[Sample]:
    """The samples of all rows, the same on every rank."""
    rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
    # Every rank makes the same number of calls, since a sharded model is gathered by all of them together.
    share = -(-len(rows) // ranks)
    mine = [min(i, len(rows) - 1) for i in range(rank * share, (rank + 1) * share)]
    completions = _decode(trainer, [rows[i]["prompt"] for i in mine], temperature)
    extras = {"trainer_state": trainer.state, "log_extra": _ignore, "log_metric": _ignore}
    samples = score_completions([rows[i] for i in mine], completions, _callable_rewards(trainer), extras)
    settle_failures(trainer.reward_funcs, gather_object)
    samples = [replace(s, row=mine[s.row]) for s in samples]
    by_row = {sample.row: sample for sample in gather_object(samples)}
    return [by_row[i] for i in range(len(rows))]


def _decode(trainer: GRPOExtTrainer, prompts: list[Any], temperature: float) -> list[list[Completion]]:
    args = trainer.args
    fast = getattr(args, "fast_generate", True)
    decoding = Decoding(args.max_completion_length, temperature, seed=args.seed, fast=fast)
    with (
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=args.gradient_checkpointing_kwargs,
        ) as model,
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        return generate_completions(
            model,
            trainer.processing_class,
            prompts,
            decoding,
            batch_size=args.per_device_eval_batch_size,
            chat_template_kwargs=trainer.chat_template_kwargs,
            progress=None if args.disable_tqdm or not trainer.is_world_process_zero() else "evaluate",
        )


def _ignore(*_: Any) -> None:
    """What rewards log while they are evaluated goes nowhere: training's own logs stay as they are."""


def _callable_rewards(trainer: GRPOExtTrainer) -> dict[str, Any]:
    """The reward functions by name; reward models need TRL's own evaluation."""
    rewards = dict(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))
    return {name: reward for name, reward in rewards.items() if not isinstance(reward, nn.Module)}


def _means(samples: list[Sample], prefix: str) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in samples[0].rewards if samples else ():
        mean, error = mean_and_error(samples, lambda s, name=name: s.rewards[name])
        if mean is not None:
            metrics[f"{prefix}_{name}"] = mean
            metrics[f"{prefix}_{name}_se"] = error or 0.0
    metrics[f"{prefix}_length"] = mean_and_error(samples, lambda s: s.length)[0] or 0.0
    return metrics
