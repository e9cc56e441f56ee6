"""The order of the prompts, and what is seen of each: the trainer's side of `grpo_ext.curriculum`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from grpo_ext.curriculum.groups import GroupStats
from grpo_ext.curriculum.harvest import Harvest
from grpo_ext.curriculum.pass_rates import PassRates, prompt_id, read_pass_rates
from grpo_ext.curriculum.prompt_supply import Row
from grpo_ext.curriculum.sampler import CURRICULA, Curriculum, PromptSampler
from grpo_ext.trainer.refill import FilteredGroups


class PromptOrder(FilteredGroups):
    """Mixin before `GRPOTrainer`: prompts in an order that is resumable, and by what is known of them.

    Reads the options `curriculum`, `pass_rates_file`, `difficulty_column`, `pass_rate_decay`, `curriculum_floor`,
    `easy_pool_share` and `harvest`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._sampler: PromptSampler | None = None
        self._sampler_state: dict[str, Any] | None = None
        super().__init__(*args, **kwargs)
        self.curriculum = make_curriculum(self)
        self._needs_prompts = self.curriculum.rates is not None
        harvest = getattr(self.args, "harvest", None)
        if harvest is not None:
            if self.tools:
                raise ValueError(
                    "harvest keeps one message a completion, and with tools there are several: take it out."
                )
            least = {"min_reward": self.group_rule.pass_threshold}
            self.add_callback(Harvest(self.reward_func_names[self.outcome_reward], **{**least, **harvest}))
        if self.further_prompts is not None and self.curriculum.kind != "none":
            self.further_prompts.draw = self._draw_further

    def _get_train_sampler(self, dataset: Dataset | None = None) -> PromptSampler:
        prompts = self.args.generation_batch_size // self.num_generations
        repeats = self.num_iterations * self.args.steps_per_generation
        rows = len(self.train_dataset if dataset is None else dataset)
        self._sampler = PromptSampler(
            rows, prompts, self.num_generations, repeats, self.args.seed, self.shuffle_dataset, self.curriculum
        )
        if self._sampler_state is not None:
            self._sampler.load_state_dict(self._sampler_state)
            self._sampler_state = None
        return self._sampler

    def _draw_further(self, num: int) -> list[int]:
        return self._sampler.draw_further(num, self.further_prompts.position)

    def _observe(self, prompts: list[Row], stats: GroupStats) -> None:
        super()._observe(prompts, stats)
        rates = self.curriculum.rates
        if rates is None:
            return
        for row, right, samples in zip(prompts, stats.right.tolist(), stats.scored.tolist(), strict=True):
            rates.observe(prompt_id(row["prompt"]), right, samples)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.curriculum.rates is not None and self.model.training:
            logs.update({f"pass_rates/{name}": share for name, share in self.curriculum.rates.histogram().items()})
        super().log(logs, start_time)

    def group_state(self) -> dict[str, Any]:
        return {**super().group_state(), "order": self._sampler.state_dict() if self._sampler else None}

    def load_group_state(self, state: dict[str, Any]) -> None:
        super().load_group_state(state)
        self._sampler_state = state["order"]  # for the sampler that the next `train()` makes


def make_curriculum(trainer: Any) -> Curriculum:
    """The curriculum that the options ask for.

    Raises:
        ValueError: naming what is missing.
    """
    args, dataset = trainer.args, trainer.train_dataset
    kind = getattr(args, "curriculum", "none")
    if kind not in CURRICULA:
        raise ValueError(f"curriculum is {kind!r}: write one of {', '.join(CURRICULA)}.")
    if kind == "none":
        return Curriculum(kind, trainer.num_generations)
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"curriculum: {kind} chooses among all rows, and a stream shows them one by one. Write curriculum: none."
        )
    start = read_pass_rates(Path(args.pass_rates_file)) if args.pass_rates_file else None
    rates = PassRates([prompt_id(prompt) for prompt in dataset["prompt"]], args.pass_rate_decay, start)
    difficulty = difficulty_of(dataset, args.difficulty_column, rates) if kind == "easy_to_hard" else None
    return Curriculum(kind, trainer.num_generations, rates, difficulty, args.curriculum_floor, args.easy_pool_share)


def difficulty_of(dataset: Dataset, column: str | None, rates: PassRates) -> np.ndarray:
    """(rows,), larger is harder: the column's values, or how seldom a prompt was solved before the run.

    Raises:
        ValueError: if there is neither.
    """
    if column is not None:
        if column not in dataset.column_names:
            raise ValueError(f"difficulty_column: no column {column!r}. There are {', '.join(dataset.column_names)}.")
        return np.array(dataset[column], dtype=float)
    if not rates.samples.any():
        raise ValueError(
            "curriculum: easy_to_hard needs a difficulty_column, or a pass_rates_file from `grpo-ext probe` that knows some of "
            "the prompts."
        )
    return -rates.means()
