"""Evaluate on held-out prompts during training, without affecting training."""

import time
from dataclasses import replace
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import nn

from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.environments.open_environments import close_played
from grpo_ext.environments.played_episodes import instances
from grpo_ext.evaluation.by_task import figures_of
from grpo_ext.evaluation.completions import (
    Completion,
    Decoding,
    episodes_of,
    generate_completions,
)
from grpo_ext.evaluation.problem import problem_of
from grpo_ext.evaluation.score import Sample, with_episode
from grpo_ext.samplers.choose import precision_of
from grpo_ext.samplers.port import CheckedArguments
from grpo_ext.seams import trl as seam
from grpo_ext.seams.port import Row
from grpo_ext.step.judge import outcome_order
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.samples import by_name


def decoding_of(args: CheckedArguments) -> Decoding | None:
    """Return the decoding settings for evaluations, or `None` if `eval_temperature` is not set.

    In that case, TRL evaluates with the sampling settings of training.

    Raises:
        ValueError: if the decoding options contradict each other, or a stop string is empty or not
            a string.
    """
    if args.eval_temperature is None:
        return None
    return Decoding(
        args.max_completion_length,
        temperature=args.eval_temperature,
        top_p=args.eval_top_p,
        top_k=args.eval_top_k,
        min_p=args.eval_min_p,
        num_samples=args.eval_num_samples,
        seed=args.seed,
        stop_strings=stop_strings_of(args.generation_kwargs),
    )


def check_decoding(trainer: Trainer, by_trl: bool) -> None:
    """Raise `ValueError` if `eval_temperature` is set, but evaluations cannot use `generate`.

    Evaluations cannot use it with a `rollout_func`, or if TRL generates the completions.

    Args:
        trainer: the trainer, with its decoding settings for evaluations.
        by_trl: whether TRL itself generates, as it does for a multimodal processor and for tools
            that it calls.
    """
    if trainer.eval_decoding is not None and (trainer.rollout_func is not None or by_trl):
        raise ValueError(
            "With eval_temperature, evaluations use the model's `generate`, which supports neither "
            "rollout_func, nor a multimodal processor, nor tools that TRL itself calls. Remove "
            "eval_temperature; TRL then evaluates with the sampling settings of training."
        )


def evaluate_policy(
    trainer: Trainer,
    decoding: Decoding,
    eval_dataset: str | Dataset | IterableDataset | dict[str, Dataset] | None,
    prefix: str,
) -> dict[str, float]:
    """Complete all held-out prompts, score the completions, and log the metrics.

    The rows are split among the ranks. The model's `generate` is used even if training samples with
    vLLM. Decoding has an RNG of its own, so training is the same with and without evaluation.
    Samples that at least one callback wants are passed to all callbacks (see `Samples`). All ranks
    must call this function.

    Args:
        trainer: the trainer with the policy and the rewards.
        decoding: the decoding settings.
        eval_dataset: a dataset, a mapping of named datasets, the name of one of the trainer's
            datasets, or `None` for all of them.
        prefix: prepended to the names of the metrics, followed by `_`. For a mapping, `_` and the
            name of each dataset are appended to the prefix.

    Returns:
        The metrics, whose names all start with `{prefix}_`:

        - the mean of each reward, under the name of the reward;
        - `length`, the mean number of tokens;
        - for the outcome reward `pass@1` and, with k samples per prompt, `mean@k`, `pass@k` and
          `mixed@k` (the share of prompts whose samples got different scores);
        - with `eval_constant`, `NAME_constant`, the best constant answer's mean for each reward;
        - `problems`, the number of distinct problems, and `runtime`, in seconds;
        - for episodes, the metrics of `episode_figures`; with several environments, also those of
          each environment, under `environments/NAME/`;
        - with rows of several tasks, the metrics of each task, under `tasks/NAME/`.

        Standard errors have the suffix `_se`.

    Raises:
        ValueError: if `eval_dataset` is an unknown name, there is no dataset, or a dataset has no
            rows.
        EnvironmentFailure, RewardFailure: on all ranks, if an environment or a reward failed too
            often.
    """
    datasets = trainer.eval_dataset if eval_dataset is None else eval_dataset
    if isinstance(datasets, str):
        datasets = named_dataset(trainer, datasets)
    if isinstance(datasets, dict):
        metrics: dict[str, float] = {}
        for name, dataset in datasets.items():
            metrics |= evaluate_policy(trainer, decoding, dataset, f"{prefix}_{name}")
        return metrics
    start = time.perf_counter()
    if datasets is None:
        raise ValueError(
            "There is no dataset to evaluate on. Pass an eval_dataset to the trainer or to "
            "evaluate()."
        )
    rows = list(datasets)
    if not rows:
        raise ValueError(
            f"The eval_dataset for the metrics {prefix}_* has no rows. Pass an eval_dataset that "
            "has rows."
        )
    samples = _decode_and_score(trainer, decoding, rows)
    trainer.parts.samples.hand_out_evaluation(samples, rows, prefix.removeprefix("eval_"))
    figures = figures_of(
        rows, samples, trainer.reward_func_names, outcomes_of(trainer), decoding.num_samples
    )
    figures |= trainer.parts.constant.figures(rows, samples)
    metrics = {f"{prefix}_{name}": mean for name, mean in figures.items() if mean is not None}
    metrics[f"{prefix}_runtime"] = round(time.perf_counter() - start, 3)
    trainer.log_evaluation(metrics)
    return metrics


def named_dataset(trainer: Trainer, name: str) -> Dataset:
    """Return the trainer's held-out dataset of this name; raise `ValueError` if there is none."""
    datasets = trainer.eval_dataset
    if not isinstance(datasets, dict):
        raise ValueError(
            f"There is no held-out dataset {name!r}, because the trainer's eval_dataset is not a "
            "mapping of names to datasets. Pass the dataset itself."
        )
    if name not in datasets:
        raise ValueError(
            f"There is no held-out dataset {name!r}. Choose one of: {', '.join(datasets)}."
        )
    return datasets[name]


def name_evaluation(trainer: Trainer, logs: dict[str, float]) -> None:
    """Add the dataset's name to the metric names when TRL evaluates one of several datasets.

    Without this, the rewards on every dataset would be logged as `eval_reward`, and only those on
    the last dataset would be returned. The new names follow transformers: `eval_NAME_reward`, like
    `eval_NAME_loss`. If TRL evaluates a dataset without a name, nothing is renamed.

    Args:
        trainer: the trainer; the metrics that TRL will add to the log are renamed in place.
        logs: the other metrics, renamed in place, because transformers returns this dict.
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


def _decode_and_score(trainer: Trainer, decoding: Decoding, rows: list[Row]) -> list[Sample]:
    """Generate and score completions for all rows, and return the samples in row order.

    All ranks must call this function, and all get the same result.
    """
    rank = trainer.accelerator.process_index
    ranks = trainer.accelerator.num_processes
    # Every rank makes the same number of calls, because all of them gather a sharded model
    # together. The last ranks repeat the last row; its repetitions are dropped at the end.
    share = -(-len(rows) // ranks)
    first_row = rank * share
    numbers = [min(i, len(rows) - 1) for i in range(first_row, first_row + share)]
    groups = _decode(trainer, decoding, [rows[i] for i in numbers])
    completions: list[tuple[int, Completion]] = []
    for number, group in zip(numbers, groups, strict=True):
        completions += [(number, completion) for completion in group]
    batch_size = max(len(completions), 1)
    if any(isinstance(reward, nn.Module) for reward in trainer.reward_funcs):
        # a reward model scores one batch at a time
        batch_size = trainer.args.per_device_eval_batch_size
    samples = []
    try:
        for start in range(0, len(completions), batch_size):
            samples += _score(trainer, rows, completions[start : start + batch_size])
    finally:
        close_played(episode.rules for episode in episodes_of(groups))
    seam.drop_reward_logs(trainer)
    own_rows = max(min(share, len(rows) - first_row), 0)
    return gather_object(samples[: own_rows * decoding.num_samples])


def _score(
    trainer: Trainer, rows: list[Row], completions: list[tuple[int, Completion]]
) -> list[Sample]:
    """Score this rank's completions, and return them as samples.

    All ranks must call this function, with the same number of completions.

    Args:
        trainer: the trainer, with the rewards.
        rows: the rows of the dataset.
        completions: pairs of the index of a row in `rows` and a completion for this row.
    """
    prompts = []
    answers = []
    columns = []
    for number, completion in completions:
        prompt, answer, row = completion.for_rewards(rows[number])
        prompts.append(prompt)
        answers.append(answer)
        columns.append(row)
    ids = [completion.ids for _, completion in completions]
    episodes = [completion.episode for _, completion in completions if completion.episode]
    # (completions of all ranks, R)
    left_out = [completion.left_out for _, completion in completions]
    rewards = trainer.parts.judge.rewards(
        columns, prompts, answers, ids, instances(episodes), left_out
    )
    first = trainer.accelerator.process_index * len(completions)
    own_rewards = rewards[first : first + len(completions)].tolist()
    turn_credit = trainer.parts.generations.turn_credit
    samples = []
    for (number, completion), scores in zip(completions, own_rewards, strict=True):
        sample = Sample(
            number,
            completion.text,
            by_name(trainer.reward_func_names, scores),
            completion.length,
            completion.finish_reason,
            ids=completion.ids,
            problem=problem_of(rows[number], completion, trainer.reward_funcs),
        )
        if completion.episode and not completion.episode.single_turn:
            turn_weights = turn_credit.weights(completion.episode)
            sample = with_episode(sample, completion.episode, turn_weights)
        samples.append(sample)
    return samples


def _decode(trainer: Trainer, decoding: Decoding, rows: list[Row]) -> list[list[Completion]]:
    args = trainer.args
    tokenizer: Any = trainer.processing_class
    shows_progress = trainer.is_world_process_zero() and not args.disable_tqdm
    # each rank has its own seed, so that the sampling errors of the ranks are independent
    rank_seed = args.seed + trainer.accelerator.process_index
    with seam.whole_model(trainer) as model:
        completions = generate_completions(
            model,
            tokenizer,
            rows,
            replace(decoding, seed=rank_seed),
            batch_size=args.per_device_eval_batch_size,
            fast=args.fast_generate,
            chat_template_kwargs=trainer.chat_template_kwargs,
            progress="evaluate" if shows_progress else None,
            begin=trainer.parts.generations.begin,
            precision=precision_of(trainer),
        )
    trainer.parts.generations.check_environment(episodes_of(completions))
    return completions


def outcomes_of(trainer: Trainer) -> list[str]:
    """Return the names of the rewards that decide pass@k, in the order of `outcome_order`.

    Reward models are excluded, even if `group_filter_metric` names one. The result is empty if all
    rewards are models.
    """
    names = []
    weights = []
    all_weights = trainer.reward_weights.tolist()
    for name, reward, weight in zip(
        trainer.reward_func_names, trainer.reward_funcs, all_weights, strict=True
    ):
        if not isinstance(reward, nn.Module):
            names.append(name)
            weights.append(weight)
    if not names:
        return []
    metric = trainer.args.group_filter_metric
    order = outcome_order(names, weights, metric if metric in names else None)
    return [names[i] for i in order]
