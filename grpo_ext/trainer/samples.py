"""Every scored completion, handed to the callbacks that ask for it.

A callback asks by having `wants(step, group) -> bool`, called on every rank, and `on_samples(rows)`, called on the main
process. A row is what docs/report.md describes. TRL keeps completions, too, but mixes those of training and evaluation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from torch import Tensor

from grpo_ext.curriculum.pass_rates import prompt_id
from grpo_ext.rewards.reward import plain_text

if TYPE_CHECKING:
    from grpo_ext.evaluation.score import Sample


class Samples:
    """Hands out what a trainer's completions came to.

    Args:
        trainer: with the callbacks that ask.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.eval_name = "eval"  # the data set that TRL evaluates on
        self._groups_seen: tuple[tuple[Any, ...], int] = ((), 0)  # of one step, mode and data set

    def _callbacks(self) -> list[Any]:
        return [c for c in self.trainer.callback_handler.callbacks if hasattr(c, "on_samples")]

    def hand_out(
        self,
        rows: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        lengths: list[int],
        truncated: list[bool],
        rewards: Tensor,
        advantages: Tensor,
    ) -> None:
        """The samples of one generation; those of all ranks in the order of the groups.

        Args:
            rows: B rows of the data set, of this rank, as are the other lists.
            rewards: (B of all ranks, R).
            advantages: (B of all ranks,).
        """
        callbacks, trainer = self._callbacks(), self.trainer
        if not callbacks:
            return
        train = trainer.model.training
        step = trainer.state.global_step + train  # the step that they train, or the weights that are evaluated
        name = "train" if train else self.eval_name
        group_size = trainer.num_generations if train else trainer.num_generations_eval
        accelerator, own = trainer.accelerator, len(prompts)
        first = accelerator.process_index * own
        first_group = self._count_groups((step, name), own * accelerator.num_processes // group_size)
        scores = rewards[first : first + own].tolist()  # (B, R)
        worth = advantages[first : first + own].tolist()
        weights, columns = trainer.reward_weights.tolist(), columns_read(trainer.reward_funcs)
        mine = []
        for i in range(own):
            group = first_group + (first + i) // group_size
            if not any(callback.wants(step, group) for callback in callbacks):
                continue
            named = dict(zip(trainer.reward_func_names, map(none_if_nan, scores[i]), strict=True))
            mine.append({
                "step": step, "mode": "train" if train else "eval", "dataset": name, "prompt_id": prompt_id(prompts[i]),
                "group": group, "prompt": prompts[i], "text": text_of(completions[i]), "rewards": named,
                "reward": weighted(named, weights), "advantage": worth[i],
                "finish_reason": "length" if truncated[i] else "stop", "length": lengths[i],
                "columns": {key: rows[i][key] for key in columns if key in rows[i]},
            })  # fmt: skip
        self._give(gather_object(mine))

    def hand_out_evaluation(self, samples: list[Sample], rows: list[dict[str, Any]], name: str) -> None:
        """The samples of one evaluation, the same on every rank; `name` is the data set's."""
        trainer = self.trainer
        callbacks, step = self._callbacks(), trainer.state.global_step
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        columns = columns_read(trainer.reward_funcs)
        self._give([
            {
                "step": step, "mode": "eval", "dataset": name, "prompt_id": prompt_id(rows[s.row]["prompt"]),
                "group": s.row, "prompt": rows[s.row]["prompt"], "text": s.text, "rewards": s.rewards,
                "reward": weighted(s.rewards, [weights[key] for key in s.rewards]), "advantage": None,
                "finish_reason": s.finish_reason, "length": s.length,
                "columns": {key: rows[s.row][key] for key in columns if key in rows[s.row]},
            }
            for s in samples if any(callback.wants(step, s.row) for callback in callbacks)
        ])  # fmt: skip

    def _give(self, rows: list[dict[str, Any]]) -> None:
        if self.trainer.accelerator.is_main_process:
            for callback in self._callbacks():
                callback.on_samples(rows)

    def _count_groups(self, key: tuple[Any, ...], groups: int) -> int:
        """The number of the first of these groups, counted from 0 within a step, mode and data set."""
        before = self._groups_seen[1] if self._groups_seen[0] == key else 0
        self._groups_seen = (key, before + groups)
        return before


def columns_read(reward_funcs: list[Any]) -> list[str]:
    """The data set's columns that the rewards say they read."""
    return sorted({column for reward in reward_funcs for column in getattr(reward, "columns", ())})


def text_of(completion: Any) -> str:
    """What the model wrote; a conversation with tools as JSON."""
    if isinstance(completion, list) and len(completion) > 1:
        return json.dumps(completion, ensure_ascii=False, default=str)
    try:
        return plain_text(completion)
    except TypeError:
        return str(completion)


def none_if_nan(value: float) -> float | None:
    return None if value != value else value


def weighted(rewards: dict[str, float | None], weights: list[float]) -> float | None:
    """The sum of the rewards that scored it, each times its weight; `None` where none did."""
    parts = [w * r for w, r in zip(weights, rewards.values(), strict=True) if r is not None]
    return sum(parts) if parts else None
