"""Give every scored completion to the callbacks that ask for it.

Such a callback has `wants(step, group) -> bool`, called on every rank, and `on_samples(rows)`, called on the main process.
docs/report.md describes a row. TRL also keeps completions, but mixes those of training and evaluation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object

from grpo_ext.common.columns import TASK
from grpo_ext.curriculum.pass_rates import prompt_id
from grpo_ext.environments.transcript import as_text
from grpo_ext.rewards.reward import plain_text
from grpo_ext.step.judge import fill_unscored
from grpo_ext.step.refill import updates_per_generation

if TYPE_CHECKING:
    from torch import Tensor

    from grpo_ext.evaluation.score import Sample
    from grpo_ext.step.records import Scored
    from grpo_ext.trainer.judging import Judged


class Samples:
    """Gives the samples of a trainer to its callbacks."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.eval_name = "eval"  # the data set that TRL evaluates on
        self._groups_seen: tuple[tuple[Any, ...], int] = (
            (),
            0,
        )  # a step with its data set, and its number of groups so far

    def _callbacks(self) -> list[Any]:
        return [c for c in self.trainer.callback_handler.callbacks if hasattr(c, "on_samples")]

    def hand_out(self, judged: Judged) -> None:
        """Give out the samples of one generation on all ranks, in the order of the groups."""
        callbacks, trainer = self._callbacks(), self.trainer
        if not callbacks:
            return
        train = trainer.model.training
        step = (
            trainer.state.global_step + train
        )  # the step that trains on them, or the step of the evaluated weights
        mode, name = ("train", "train") if train else ("eval", self.eval_name)
        accelerator, own = trainer.accelerator, len(judged.prompts)
        first = accelerator.process_index * own
        first_group = self._count_groups((step, name), len(judged.shape.sizes))
        groups = judged.shape.numbers[first : first + own]
        given = judged.given[first : first + own].tolist()  # (B, R)
        worth = judged.advantages[first : first + own].tolist()
        sums = self._weighted(judged.rewards[first : first + own])
        mine = []
        for i in range(own):
            group = first_group + groups[i]
            if any(callback.wants(step, group) for callback in callbacks):
                mine.append(self._whole(judged.rows[i], sums[i], {
                    "step": step, "mode": mode, "dataset": name, "group": group, "prompt": judged.prompts[i],
                    "text": text_of(judged.completions[i], bool(judged.episodes)), "advantage": worth[i],
                    "length": judged.lengths[i],
                    "finish_reason": "length" if judged.truncated[i] else "stop",
                    "rewards": by_name(trainer.reward_func_names, given[i]),
                    **failed_rewards(trainer.reward_func_names, judged.failed, first + i),
                    **({"tie_break": True} if judged.ties is not None and bool(judged.ties[first + i]) else {}),
                    **(judged.episodes[i] if judged.episodes else {}),
                    **({"tokens": self._tokens(judged.table, i, step)} if trainer.args.log_tokens else {}),
                }))  # fmt: skip
        self._give(gather_object(mine))

    def _tokens(self, table: Scored, row: int, step: int) -> dict[str, Any]:
        """Return the text of each token and its figures.

        These are its advantage, its age at the first step that may train on it and, if several do, at the last, and its
        log-prob where the sampler or a pass gave it.
        """
        counted = table.completion_mask[row].bool()  # (T,)
        ids = table.completion_ids[row][counted].tolist()
        advantages = table.row_advantages[row].expand(len(counted))[counted].tolist()
        found = {
            "text": self.trainer.processing_class.batch_decode([[token] for token in ids]), "advantage": advantages,
            "age": (step - 1 - table.policy_step[row][counted]).tolist(),
        }  # fmt: skip
        updates = updates_per_generation(self.trainer.args)
        if updates > 1:
            found["last_age"] = [age + updates - 1 for age in found["age"]]
        logps = (
            table.sampling_per_token_logps
            if table.old_per_token_logps is None
            else table.old_per_token_logps
        )
        if logps is not None:
            found["logp"] = [
                None if value != value else value for value in logps[row][counted].tolist()
            ]
        return found

    def hand_out_evaluation(
        self, samples: list[Sample], rows: list[dict[str, Any]], name: str
    ) -> None:
        """Give out the samples of one evaluation, the same on every rank; `name` is the name of the data set."""
        callbacks, step = self._callbacks(), self.trainer.state.global_step
        names = self.trainer.reward_func_names
        scores = [[s.rewards[name] for name in names] for s in samples]
        given = torch.tensor(
            [[math.nan if score is None else score for score in row] for row in scores],
            dtype=torch.float64,
        )  # (samples, R)
        sums = self._weighted(fill_unscored(given, self.trainer.eval_decoding.num_samples))
        self._give([
            self._whole(rows[s.row], total, {
                "step": step, "mode": "eval", "dataset": name, "group": s.row, "prompt": rows[s.row].get("prompt"),
                "text": s.text,
                "advantage": None, "length": s.length, "finish_reason": s.finish_reason, "rewards": s.rewards,
                **(s.episode or {}),
            })
            for s, total in zip(samples, sums, strict=True) if any(callback.wants(step, s.row) for callback in callbacks)
        ])  # fmt: skip

    def _weighted(self, rewards: Tensor) -> list[float | None]:
        """Return the weighted sums of the rewards (B, R) as training computes them; `None` if nothing was scored."""
        on_cpu = rewards.cpu().double()  # MPS has no float64
        sums = self.trainer.parts.generations.rule.weighted(on_cpu).tolist()
        return [None if math.isnan(total) else total for total in sums]

    def _whole(
        self, row: dict[str, Any], reward: float | None, sample: dict[str, Any]
    ) -> dict[str, Any]:
        """Add to a sample its task, the id of its prompt, its weighted sum, and the columns that rewards read."""
        columns = sorted(
            {
                column
                for function in self.trainer.reward_funcs
                for column in getattr(function, "columns", ())
            }
        )
        asked = (
            [sample["prompt"], sample["seed"]] if "seed" in sample else sample["prompt"]
        )  # each seed is another problem
        found = {"prompt_id": prompt_id(asked), "reward": reward}
        if isinstance(row.get(TASK), str):
            found["task"] = row[TASK]
        return {**sample, **found, "columns": {key: row[key] for key in columns if key in row}}

    def _give(self, rows: list[dict[str, Any]]) -> None:
        if self.trainer.accelerator.is_main_process:
            for callback in self._callbacks():
                callback.on_samples(rows)

    def _count_groups(self, key: tuple[Any, ...], groups: int) -> int:
        """Return the number of the first of these groups, counted from 0 within a step and data set."""
        before = self._groups_seen[1] if self._groups_seen[0] == key else 0
        self._groups_seen = (key, before + groups)
        return before


def text_of(completion: Any, is_episode: bool) -> str:
    """Return a completion as text: an episode with the answers of its environment, even if it has only one turn."""
    if isinstance(completion, list) and (is_episode or len(completion) > 1):
        return as_text(completion)
    try:
        return plain_text(completion)
    except TypeError:
        return str(completion)


def failed_rewards(names: list[str], failed: Tensor | None, row: int) -> dict[str, list[str]]:
    """Return under "failed" the rewards that failed on a completion; nothing if none did."""
    if failed is None:
        return {}
    found = [name for name, wrong in zip(names, failed[row].tolist(), strict=True) if wrong]
    return {"failed": found} if found else {}


def by_name(names: list[str], scores: list[float]) -> dict[str, float | None]:
    """Return the rewards of one completion by name; `None` for a reward that did not score it (NaN)."""
    return {
        name: None if score != score else score for name, score in zip(names, scores, strict=True)
    }
