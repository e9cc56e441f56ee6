"""Evaluation inside a training run: decode the policy on held-out prompts without any effect on training."""

import time
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object
from torch import nn

from grpo_ext.environments.episode import instances
from grpo_ext.evaluation.by_task import figures_of
from grpo_ext.evaluation.completions import Completion, Decoding, generate_completions
from grpo_ext.evaluation.problem import problem_of
from grpo_ext.evaluation.score import Sample
from grpo_ext.seams import trl as seam
from grpo_ext.step.judge import outcome_order
from grpo_ext.trainer.samples import by_name


def decoding_of(args: Any) -> Decoding | None:
    """Return how evaluation decodes, or `None` if TRL evaluates; `ValueError` for values that contradict each other."""
    if args.eval_temperature is None:
        return None
    names = ("temperature", "top_p", "top_k", "min_p", "num_samples")
    given = {name: getattr(args, f"eval_{name}") for name in names}
    return Decoding(args.max_completion_length, **given, seed=args.seed)


def check_decoding(trainer: Any, by_trl: bool) -> None:
    """Raise a `ValueError` for `eval_temperature` if training does not complete plain text by `generate`."""
    if trainer.eval_decoding is not None and (trainer.rollout_func is not None or by_trl):
        raise ValueError(
            "eval_temperature decodes with the model's generate, without rollout_func, images and tools that TRL calls: leave "
            "it out, and TRL evaluates as it trains."
        )


def evaluate_policy(trainer: Any, eval_dataset: Any, prefix: str) -> dict[str, float]:
    """Decode and score every held-out prompt, and log means and pass@k with their standard errors.

    The ranks share the rows. The model's `generate` decodes, also if training samples through vLLM. It has a separate random
    state, so training is the same with evaluation on and off. `eval_dataset` is a data set, a mapping of named ones, the name
    of one of the trainer's, or `None` for all of those.

    Returns:
        Under `{prefix}_` the mean of each reward, `length`, and for the outcome reward `pass@1` and, with k samples per prompt,
        `mean@k`, `pass@k` and `mixed@k` (see `outcome_figures`); under `NAME_constant` what the best constant answer earns;
        standard errors under `..._se`; under `problems` how many different ones the rows have. Rows of several tasks add the
        figures of each, under `{prefix}_tasks/NAME/`. Named data sets add their names to the prefix.
    """
    datasets = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(datasets, str):
        named, name = (
            trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {},
            datasets,
        )
        if (datasets := named.get(name)) is None:
            raise ValueError(
                f"There is no held-out data set {name!r}: write one of {', '.join(named) or 'none'}."
            )
    if isinstance(datasets, dict):
        parts = [
            evaluate_policy(trainer, dataset, f"{prefix}_{name}")
            for name, dataset in datasets.items()
        ]
        return {key: value for part in parts for key, value in part.items()}
    start = time.perf_counter()
    rows = list(datasets or ())
    if not rows:
        raise ValueError("There is nothing to evaluate on: pass an eval_dataset with rows.")
    samples = _decode_and_score(trainer, rows)
    trainer.parts.samples.hand_out_evaluation(samples, rows, prefix.removeprefix("eval_"))
    figures = figures_of(
        rows,
        samples,
        trainer.reward_func_names,
        outcomes_of(trainer),
        trainer.eval_decoding.num_samples,
    )
    figures |= trainer.parts.constant.figures(rows, samples)
    metrics = {f"{prefix}_{name}": value for name, value in figures.items() if value is not None}
    metrics[f"{prefix}_runtime"] = round(time.perf_counter() - start, 3)
    trainer.log_evaluation(metrics)
    return metrics


def name_evaluation(trainer: Any, logs: dict[str, float]) -> None:
    """Add the name of the data set to the figures of an evaluation by TRL on one of several.

    TRL itself logs `eval_reward` for each of them, and returns that of the last one. The names become those of
    transformers: `eval_NAME_reward` beside `eval_NAME_loss`.

    Args:
        trainer: has the figures that TRL adds to the log.
        logs: the other figures; changed in place, since transformers returns them.
    """
    name = trainer.parts.samples.eval_name
    if not isinstance(trainer.eval_dataset, dict) or name not in trainer.eval_dataset:
        return
    figures = seam.metrics_of(trainer)
    for key in list(figures):
        figures[f"{name}_{key}"] = figures.pop(key)
    for key in list(logs):
        if key.startswith("eval_") and not key.startswith(f"eval_{name}_"):
            logs[f"eval_{name}_{key.removeprefix('eval_')}"] = logs.pop(key)


def _decode_and_score(trainer: Any, rows: list[dict[str, Any]]) -> list[Sample]:
    """Return the samples of all rows in their order, the same on every rank."""
    rank, ranks = trainer.accelerator.process_index, trainer.accelerator.num_processes
    # Every rank makes the same number of calls, because all of them gather a sharded model together.
    share = -(-len(rows) // ranks)
    mine = [min(i, len(rows) - 1) for i in range(rank * share, (rank + 1) * share)]
    made = zip(mine, _decode(trainer, [rows[i] for i in mine]), strict=True)
    flat = [(i, completion) for i, group in made for completion in group]
    models = any(
        isinstance(reward, nn.Module) for reward in trainer.reward_funcs
    )  # they take one batch at a time
    size = trainer.args.per_device_eval_batch_size if models else max(len(flat), 1)
    samples = [
        s for n in range(0, len(flat), size) for s in _score(trainer, rows, flat[n : n + size])
    ]
    seam.drop_reward_logs(trainer)
    own = max(
        min(share, len(rows) - rank * share), 0
    )  # later samples only fill the calls of the last ranks
    return gather_object(samples[: own * trainer.eval_decoding.num_samples])


def _score(
    trainer: Any, rows: list[dict[str, Any]], flat: list[tuple[int, Completion]]
) -> list[Sample]:
    """Score completions, each with the number of its row; all ranks must score the same number."""
    ids = [c.ids for _, c in flat]
    prompts, texts, asked = map(list, zip(*(c.for_rewards(rows[i]) for i, c in flat), strict=True))
    environments = instances([c.episode for _, c in flat if c.episode])
    scores = trainer.parts.judge.rewards(
        asked, prompts, texts, ids, environments
    )  # (completions of all ranks, R)
    first = trainer.accelerator.process_index * len(flat)
    given = [
        by_name(trainer.reward_func_names, row)
        for row in scores[first : first + len(flat)].tolist()
    ]
    weights = trainer.parts.generations.turn_weights
    return [
        Sample(
            i,
            c.text,
            g,
            c.length,
            c.finish_reason,
            c.episode.logged(weights) if c.episode else None,
            c.ids,
            problem_of(rows[i], c, trainer.reward_funcs),
        )
        for (i, c), g in zip(flat, given, strict=True)
    ]


def _decode(trainer: Any, rows: list[dict[str, Any]]) -> list[list[Completion]]:
    args, begin = trainer.args, trainer.parts.generations.begin
    # each rank draws different numbers, so that their errors do not add up
    decoding = replace(trainer.eval_decoding, seed=args.seed + trainer.accelerator.process_index)
    with seam.whole_model(trainer) as model:
        completions = generate_completions(
            model,
            trainer.processing_class,
            rows,
            decoding,
            batch_size=args.per_device_eval_batch_size,
            fast=args.fast_generate,
            chat_template_kwargs=trainer.chat_template_kwargs,
            progress=None
            if args.disable_tqdm or not trainer.is_world_process_zero()
            else "evaluate",
            begin=begin,
        )
    episodes = [made.episode for group in completions for made in group if made.episode]
    trainer.parts.generations.check_environment(episodes)
    return completions


def outcomes_of(trainer: Any) -> list[str]:
    """Return the rewards that decide pass@k, in the order of `outcome_order`, without reward models."""
    functions = {
        name: weight
        for name, reward, weight in zip(
            trainer.reward_func_names,
            trainer.reward_funcs,
            trainer.reward_weights.tolist(),
            strict=True,
        )
        if not isinstance(reward, nn.Module)
    }
    if not functions:
        return []
    names, metric = list(functions), trainer.args.group_filter_metric
    order = outcome_order(names, list(functions.values()), metric if metric in functions else None)
    return [names[index] for index in order]
