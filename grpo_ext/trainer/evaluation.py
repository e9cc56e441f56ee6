"""Evaluation inside a training run: decode the policy on held-out prompts and leave training exactly as it was."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from torch import nn

from grpo_ext.evaluation.completions import Completion, Decoding, generate_completions
from grpo_ext.evaluation.score import Sample, outcome_figures, score_completions, summarize
from grpo_ext.seams import trl as seam

if TYPE_CHECKING:
    from grpo_ext.trainer.trainer import GRPOExtTrainer


def decoding_of(args: Any) -> Decoding | None:
    """How evaluation decodes; `None` where it is left to TRL.

    Raises:
        ValueError: for values that contradict each other.
    """
    if args.eval_temperature is None:
        return None
    names = ("temperature", "top_p", "top_k", "min_p", "num_samples")
    given = {name: getattr(args, f"eval_{name}") for name in names}
    return Decoding(args.max_completion_length, **given, seed=args.seed, fast=args.fast_generate)


def evaluate_policy(trainer: GRPOExtTrainer, eval_dataset: Any, prefix: str) -> dict[str, float]:
    """Decode every held-out prompt, score it, log means and pass@k with their standard errors.

    The rows are shared out over the ranks. Decoding is the model's own `generate`, also where training samples through
    vLLM. Its random state is its own, so that training is the same with evaluation on and off.

    Args:
        eval_dataset: a data set, a mapping of named ones, or `None` for the trainer's own.
        prefix: of the metrics' names.

    Returns:
        Under `{prefix}_` the mean of each reward, `length`, and of the outcome reward `pass@1` and, with k samples a prompt,
        `mean@k` and `pass@k` (see `outcome_figures`); standard errors under `..._se`. Named data sets add their names to the
        prefix.
    """
    datasets = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if datasets is None:
        raise ValueError("There is nothing to evaluate on: pass an eval_dataset.")
    if isinstance(datasets, dict):
        parts = [evaluate_policy(trainer, dataset, f"{prefix}_{name}") for name, dataset in datasets.items()]
        return {key: value for part in parts for key, value in part.items()}
    start = time.perf_counter()
    rows = list(datasets)
    samples = _decode_and_score(trainer, rows)
    trainer.parts.samples.hand_out_evaluation(samples, rows, prefix.removeprefix("eval_"))
    metrics = _figures(trainer, samples, prefix)
    metrics[f"{prefix}_runtime"] = round(time.perf_counter() - start, 3)
    trainer.log_evaluation(dict(metrics))
    trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics


def _decode_and_score(trainer: GRPOExtTrainer, rows: list[dict[str, Any]]) -> list[Sample]:
    """The samples of all rows in their order, the same on every rank."""
    rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
    # Every rank makes the same number of calls, since a sharded model is gathered by all of them together.
    share = -(-len(rows) // ranks)
    mine = [min(i, len(rows) - 1) for i in range(rank * share, (rank + 1) * share)]
    completions = _decode(trainer, [rows[i]["prompt"] for i in mine])
    extras = {"trainer_state": trainer.state, "log_extra": _ignore, "log_metric": _ignore}
    samples = score_completions([rows[i] for i in mine], completions, _callable_rewards(trainer), extras)
    trainer.parts.judge.settle()
    own = max(min(share, len(rows) - rank * share), 0)  # what comes after them only fills the last ranks' calls
    samples = [replace(s, row=mine[s.row]) for s in samples if s.row < own]
    return gather_object(samples)


def _decode(trainer: GRPOExtTrainer, prompts: list[Any]) -> list[list[Completion]]:
    args = trainer.args
    # ranks draw different numbers, so that their errors do not add up
    decoding = replace(trainer.eval_decoding, seed=args.seed + trainer.accelerator.process_index)
    with seam.whole_model(trainer) as model:
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


def outcome_of(trainer: GRPOExtTrainer) -> str | None:
    """The reward that pass@k is about: the one that is named, else that of the largest weight; `None` for reward models.

    Raises:
        ValueError: where `eval_outcome_reward` names none of the rewards.
    """
    rewards, name = list(_callable_rewards(trainer)), trainer.args.eval_outcome_reward
    if name is not None and name not in rewards:
        raise ValueError(
            f"eval_outcome_reward is {name!r}, which is none of the rewards: write one of {', '.join(rewards)}."
        )
    weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
    return name or max(rewards, key=weights.get, default=None)


def _figures(trainer: GRPOExtTrainer, samples: list[Sample], prefix: str) -> dict[str, float]:
    figures: dict[str, float | None] = {}
    outcome = outcome_of(trainer)
    if samples:
        figures = summarize(samples, list(samples[0].rewards))
    if samples and outcome is not None:
        figures |= outcome_figures(samples, outcome, trainer.eval_decoding.num_samples)
    figures["length"] = figures.get("length") or 0.0
    return {f"{prefix}_{name}": value for name, value in figures.items() if value is not None}
