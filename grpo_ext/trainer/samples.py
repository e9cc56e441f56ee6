"""Every scored completion, handed to the callbacks that ask for it.

A callback asks by having `wants(step, group) -> bool`, called on every rank, and `on_samples(rows)`, called on the main
process. A row is what docs/report.md describes. TRL keeps completions, too, but mixes those of training and evaluation.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from grpo_ext.curriculum.pass_rates import prompt_id
from grpo_ext.rewards.reward import plain_text

if TYPE_CHECKING:
    from grpo_ext.evaluation.score import Sample


class HandsOutSamples:
    """Mixin before `GRPOTrainer`, outside of all that changes rewards and advantages."""

    def __init__(self, *args: Any, **kwargs: Any):
        self._generated: tuple[Any, ...] | None = None
        self._groups_seen: tuple[tuple[Any, ...], int] = ((), 0)  # of one step, mode and data set
        self._eval_name = "eval"
        super().__init__(*args, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._generated = (inputs, prompts, completions, completion_ids_list, rewards_per_func)
        return rewards_per_func

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self._sample_callbacks() and self._generated is not None:
            self._hand_out(output["advantages"], *self._generated)
        self._generated = None
        return output

    def _sample_callbacks(self) -> list[Any]:
        return [callback for callback in self.callback_handler.callbacks if hasattr(callback, "on_samples")]

    def _hand_out(self, advantages, inputs, prompts, completions, completion_ids_list, rewards_per_func) -> None:
        """The rows of one generation; those of all ranks in the order of the groups."""
        train = self.model.training
        step = self.state.global_step + train  # the step that they train, or the weights that are evaluated
        name = "train" if train else self._eval_name
        group_size = self.num_generations if train else self.num_generations_eval
        rows, ranks, rank = len(prompts), self.accelerator.num_processes, self.accelerator.process_index
        first_group = self._count_groups((step, name), rows * ranks // group_size)
        scores = rewards_per_func[rank * rows : (rank + 1) * rows].tolist()  # (B, R)
        weights = self.reward_weights.tolist()
        columns = columns_read(self.reward_funcs)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        mine = []
        for i, (ids, advantage) in enumerate(zip(completion_ids_list, advantages.tolist(), strict=True)):
            group = first_group + (rank * rows + i) // group_size
            if not any(callback.wants(step, group) for callback in self._sample_callbacks()):
                continue
            rewards = dict(zip(self.reward_func_names, map(none_if_nan, scores[i]), strict=True))
            cut_off = len(ids) >= self.max_completion_length and ids[-1] not in ends
            mine.append({
                "step": step, "mode": "train" if train else "eval", "dataset": name, "prompt_id": prompt_id(prompts[i]),
                "group": group, "prompt": prompts[i], "text": text_of(completions[i]), "rewards": rewards,
                "reward": weighted(rewards, weights), "advantage": advantage,
                "finish_reason": "length" if cut_off else "stop", "length": len(ids),
                "columns": {key: inputs[i][key] for key in columns if key in inputs[i]},
            })  # fmt: skip
        self._give(gather_object(mine))

    def hand_out_evaluation(self, samples: list[Sample], rows: list[dict[str, Any]], name: str) -> None:
        """The samples of one evaluation, the same on every rank; `name` is the data set's."""
        callbacks, step = self._sample_callbacks(), self.state.global_step
        weights = dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
        columns = columns_read(self.reward_funcs)
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
        if self.accelerator.is_main_process:
            for callback in self._sample_callbacks():
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
