"""Pass scored completions to callbacks that have the methods `wants` and `on_samples`.

`wants(step, group) -> bool` is called on every rank. `step` is the optimizer step that follows
the generation, counted from 1; in an evaluation, it is the number of steps taken so far. `group` is
the index of the group within this step and dataset, from 0.

`on_samples(rows)` is called on the main process, with every sample that at least one callback
wants. docs/report.md describes the rows. TRL also keeps completions, but mixes those of training
and evaluation.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object

from grpo_ext.common.columns import IMAGES, TASK
from grpo_ext.common.hashes import prompt_id
from grpo_ext.environments.transcript import as_text
from grpo_ext.rewards.reward import plain_text
from grpo_ext.rewards.reward_columns import columns_read, needed_columns
from grpo_ext.rewards.reward_specs import RESERVED
from grpo_ext.step.judge import fill_unscored
from grpo_ext.step.refill import updates_per_generation

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ext.evaluation.score import Sample
    from grpo_ext.seams.port import Row
    from grpo_ext.step.records import Scored
    from grpo_ext.trainer.judging import Judged
    from grpo_ext.trainer.port import Trainer

MOST_LOGGED = 2000  # maximum characters (as JSON) of a column that no reward names as a parameter
NOT_LOGGED = {"prompt", TASK, *IMAGES, *RESERVED}  # unless a reward names them as parameters


class Samples:
    """Passes a trainer's samples to its callbacks."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.eval_name = "eval"  # the name of the dataset that TRL is evaluating
        self._counted: tuple[int, str] | None = None  # the step and dataset that the count is for
        self._group_count = 0  # groups of that step and dataset so far

    def _callbacks(self) -> list[Any]:
        return [c for c in self.trainer.callback_handler.callbacks if hasattr(c, "on_samples")]

    def hand_out(self, judged: Judged) -> None:
        """Pass each sample of one generation to all callbacks if at least one of them wants it.

        The samples are gathered from all ranks, in group order. All ranks must call this method.
        """
        callbacks = self._callbacks()
        if not callbacks:
            return
        trainer = self.trainer
        training = trainer.model.training
        # the step that trains on the samples, or the step of the weights that are evaluated
        step = trainer.state.global_step + training
        dataset = "train" if training else self.eval_name
        first_group = self._count_groups(step, dataset, len(judged.shape.sizes))
        first_row = trainer.accelerator.process_index * len(judged.prompts)
        own_rows = slice(first_row, first_row + len(judged.prompts))
        groups = judged.shape.numbers[own_rows]
        rewards = judged.raw_rewards[own_rows].tolist()  # (b, R)
        advantages = judged.advantages[own_rows].tolist()  # (b,)
        weighted_sums = self._weighted_sums(judged.rewards[own_rows])
        samples = []
        for i, row in enumerate(judged.rows):
            group = first_group + groups[i]
            if not any(callback.wants(step, group) for callback in callbacks):
                continue
            sample: Row = {
                "step": step,
                "mode": "train" if training else "eval",
                "dataset": dataset,
                "group": group,
                "prompt": judged.prompts[i],
                "text": text_of(judged.completions[i], judged.is_episode(i)),
                "advantage": advantages[i],
                "length": judged.lengths[i],
                "finish_reason": "length" if judged.truncated[i] else "stop",
                "rewards": by_name(trainer.reward_func_names, rewards[i]),
            }
            sample |= failed_rewards(trainer.reward_func_names, judged.failed, first_row + i)
            if judged.ties is not None and judged.ties[first_row + i]:
                sample["tie_break"] = True
            if judged.episodes:
                sample |= judged.episodes[i]
            if trainer.args.log_tokens:
                sample["tokens"] = self._tokens(judged.table, i, step)
            samples.append(self._with_row(sample, row, weighted_sums[i]))
        self._give(gather_object(samples))

    def _tokens(self, table: Scored, row: int, step: int) -> dict[str, list[Any]]:
        """Return the decoded tokens of a completion and their metrics, with one list for each key.

        Tokens that the completion mask leaves out are omitted. The keys are:

        - `text`, the decoded token;
        - `advantage`;
        - `age`, the token's age in optimizer steps at the first step that may train on it;
        - `last_age`, its age at the last such step; missing if there is only one;
        - `logp`, its old log-prob or, if the table has no old log-probs, the sampler's; `None` if
          the log-prob is NaN, and missing if the table has neither kind.

        Args:
            table: this rank's completions.
            row: the index of the completion in `table`.
            step: the first step that may train on the completion, counted from 1.
        """
        counted = table.completion_mask[row].bool()  # (T,)
        ids = table.completion_ids[row][counted].tolist()
        ages = (step - 1 - table.policy_step[row][counted]).tolist()
        columns = {
            "text": self.trainer.processing_class.batch_decode([[token] for token in ids]),
            "advantage": table.row_advantages[row].expand(len(counted))[counted].tolist(),
            "age": ages,
        }
        updates = updates_per_generation(self.trainer.args)
        if updates > 1:
            columns["last_age"] = [age + updates - 1 for age in ages]
        logps = table.old_per_token_logps
        if logps is None:
            logps = table.sampling_per_token_logps
        if logps is not None:
            columns["logp"] = [none_if_nan(logp) for logp in logps[row][counted].tolist()]
        return columns

    def hand_out_evaluation(self, samples: list[Sample], rows: list[Row], name: str) -> None:
        """Pass each sample of one evaluation to all callbacks if at least one of them wants it.

        Args:
            samples: the samples of all ranks, in the order of the rows, with equally many for each
                row.
            rows: the rows of the dataset.
            name: the name of the dataset.
        """
        callbacks = self._callbacks()
        step = self.trainer.state.global_step
        scores = []
        for sample in samples:
            sample_scores = [sample.rewards[reward] for reward in self.trainer.reward_func_names]
            scores.append([math.nan if score is None else score for score in sample_scores])
        rewards = torch.tensor(scores, dtype=torch.float64)  # (samples, R)
        weighted_sums = self._weighted_sums(fill_unscored(rewards, len(samples) // len(rows)))
        records = []
        for sample, weighted_sum in zip(samples, weighted_sums, strict=True):
            if not any(callback.wants(step, sample.row) for callback in callbacks):
                continue
            row = rows[sample.row]
            record = {
                "step": step,
                "mode": "eval",
                "dataset": name,
                "group": sample.row,
                "prompt": row.get("prompt"),
                "text": sample.text,
                "advantage": None,
                "length": sample.length,
                "finish_reason": sample.finish_reason,
                "rewards": sample.rewards,
                **(sample.episode or {}),
            }
            records.append(self._with_row(record, row, weighted_sum))
        self._give(records)

    def _weighted_sums(self, rewards: Tensor) -> list[float | None]:
        """Return the weighted sums of the rewards (B, R), computed as in training.

        A sum is `None` if no reward scored the completion.
        """
        on_cpu = rewards.cpu().double()  # an Apple GPU has no float64
        weighted_sums = self.trainer.parts.generations.rule.weighted(on_cpu)  # (B,)
        return [none_if_nan(weighted_sum) for weighted_sum in weighted_sums.tolist()]

    def _with_row(self, sample: Row, row: Row, weighted_sum: float | None) -> Row:
        """Return a copy of `sample` with `prompt_id`, `reward`, `columns` and any `task`.

        Args:
            sample: the record of a sample, with its prompt.
            row: the row of the dataset, with its task and the columns that rewards read.
            weighted_sum: the weighted sum of the rewards; `None` if no reward scored the sample.
        """
        problem = sample["prompt"]
        if "seed" in sample:  # each seed is a different problem
            problem = [problem, sample["seed"]]
        complete = {**sample, "prompt_id": prompt_id(problem), "reward": weighted_sum}
        if isinstance(row.get(TASK), str):
            complete["task"] = row[TASK]
        complete["columns"] = logged_columns(row, self.trainer.reward_funcs)
        return complete

    def _give(self, samples: list[Row]) -> None:
        if self.trainer.accelerator.is_main_process:
            for callback in self._callbacks():
                callback.on_samples(samples)

    def _count_groups(self, step: int, dataset: str, groups: int) -> int:
        """Reserve the indices of the next `groups` groups, and return the first index.

        The indices start at 0 whenever `step` or `dataset` changes.
        """
        if self._counted != (step, dataset):
            self._counted = (step, dataset)
            self._group_count = 0
        first_group = self._group_count
        self._group_count += groups
        return first_group


def logged_columns(row: Row, rewards: list[Any]) -> Row:
    """Return the columns of a row that rewards read, sorted by name.

    Columns that a reward names are returned whole, because explanations of its scores need them.
    Other columns, which a reward may read through `**kwargs`, are left out if they are in
    `NOT_LOGGED`, cannot be written as JSON, or are longer than `MOST_LOGGED` characters as JSON.
    """
    named = {name for reward in rewards for name in needed_columns(reward)}
    columns = {}
    for name in sorted(named | columns_read(row, rewards)):
        if name not in row:
            continue
        if name in named or (name not in NOT_LOGGED and is_short(row[name])):
            columns[name] = row[name]
    return columns


def is_short(value: object) -> bool:
    """Return whether a value can be written as JSON in at most `MOST_LOGGED` characters."""
    try:
        return len(json.dumps(value, ensure_ascii=False)) <= MOST_LOGGED
    except (TypeError, ValueError, RecursionError):  # images, dates and the like
        return False


def text_of(completion: Any, is_episode: bool) -> str:
    """Return a completion as a string.

    An episode, and any completion of several messages, becomes a transcript that includes the
    replies of the environment. Any other completion becomes its plain text or, if it is neither a
    string nor a list of messages, its `str`.
    """
    if isinstance(completion, list) and (is_episode or len(completion) > 1):
        return as_text(completion)
    try:
        return plain_text(completion)
    except TypeError:
        return str(completion)


def failed_rewards(names: list[str], failed: Tensor | None, row: int) -> dict[str, list[str]]:
    """Return `{"failed": [...]}` with the names of the rewards that failed on a completion.

    If none failed, return an empty dict.

    Args:
        names: the names of the R rewards.
        failed: a bool mask (B, R), true where a reward failed; `None` if it is not known.
        row: the index of the completion in `failed`.
    """
    if failed is None:
        return {}
    failed_names = [names[i] for i in failed[row].nonzero().flatten().tolist()]
    return {"failed": failed_names} if failed_names else {}


def by_name(names: list[str], scores: list[float]) -> dict[str, float | None]:
    """Return one completion's rewards by name; `None` for a reward that did not score it (NaN)."""
    return {name: none_if_nan(score) for name, score in zip(names, scores, strict=True)}


def none_if_nan(number: float) -> float | None:
    return None if math.isnan(number) else number
