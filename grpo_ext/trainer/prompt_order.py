"""The order of the prompts, and the results of each: the trainer's side of `grpo_ext.curriculum`."""

import math
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo_ext.curriculum.difficulty import difficulty_fault
from grpo_ext.curriculum.pass_rates import PassRates, prompt_id, read_pass_rates
from grpo_ext.curriculum.sampler import PromptSampler, PromptSupply, Row, from_easy_to_hard
from grpo_ext.step.groups import GroupStats
from grpo_ext.trainer.judging import outcomes_of_groups


class PromptOrder:
    """The resumable order of a trainer's prompts, which may depend on their pass rates."""

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.rates = make_rates(trainer)
        self.easy_first = make_easy_first(trainer)
        self.sampler: PromptSampler | None = None
        self._state: dict[str, Any] | None = None
        self.further: PromptSupply | None = None  # prompts beyond those of the data loader
        if trainer.args.group_filter == "refill":
            draw = self._draw_further if self.rates is not None else None
            self.further = PromptSupply(
                trainer.train_dataset, trainer.args.seed, trainer.shuffle_dataset, draw
            )

    def make_sampler(self, dataset: Dataset | None) -> PromptSampler:
        """Make the order of prompts for a call of `train()`."""
        trainer, args = self.trainer, self.trainer.args
        prompts = args.generation_batch_size // trainer.num_generations
        repeats = trainer.num_iterations * args.steps_per_generation
        rows = len(trainer.train_dataset if dataset is None else dataset)
        sizes = rows, prompts, trainer.num_generations, repeats
        self.sampler = PromptSampler(
            *sizes,
            args.seed,
            trainer.shuffle_dataset,
            self.rates,
            args.curriculum_floor,
            self.easy_first,
            args.max_slots_per_prompt,
            generations_of_run(trainer, rows // prompts),
        )
        if self._state is not None:
            self.sampler.load_state_dict(self._state)
            self._state = None
        return self.sampler

    def _draw_further(self, num: int) -> list[int]:
        assert self.sampler is not None and self.further is not None
        return self.sampler.draw_further(num, self.further.position)

    def observe(self, prompts: list[Row], stats: GroupStats) -> None:
        """Record the judged groups of these prompts, of all ranks."""
        if self.rates is not None:
            for row, right, samples in zip(
                prompts, stats.right.tolist(), stats.scored.tolist(), strict=True
            ):
                self.rates.observe(prompt_id(row["prompt"]), right, samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; the same on all ranks."""
        return {
            "order": self.sampler.state_dict() if self.sampler else None,
            "further": self.further.state_dict() if self.further else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self._state = state["order"]  # for the sampler that the next `train()` makes
        if self.further is not None:
            self.further.load_state_dict(state["further"])


def make_rates(trainer: Any) -> PassRates | None:
    """Return the pass rates that `curriculum: adaptive` begins with, or None; `ValueError` if the data set does not fit."""
    args, dataset = trainer.args, trainer.train_dataset
    if args.curriculum == "none":
        return None
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"curriculum: {args.curriculum} chooses among all rows, and a stream gives them one by one. Write curriculum: none."
        )
    if args.curriculum != "adaptive":
        return None
    start = None
    if args.pass_rates_file:
        path = Path(args.pass_rates_file).expanduser()
        rewards = [trainer.reward_func_names[index] for index in outcomes_of_groups(trainer)]
        start = read_pass_rates(path, rewards, args.pass_threshold)
    return PassRates(
        [prompt_id(prompt) for prompt in dataset["prompt"]], args.pass_rate_decay, start
    )


def make_easy_first(trainer: Any) -> list[int] | None:
    """Return the order of `curriculum: easy_to_hard`, or None; `ValueError` if the column is missing or not of numbers."""
    args, dataset = trainer.args, trainer.train_dataset
    if args.curriculum != "easy_to_hard":
        return None
    column = args.difficulty_column
    if fault := difficulty_fault(column, dataset.column_names, lambda: dataset[column]):
        raise ValueError(fault)
    return from_easy_to_hard(dataset[column], args.seed)


def generations_of_run(trainer: Any, per_epoch: int) -> int:
    """Return the number of generations of a whole run; `per_epoch` are those of an epoch."""
    args = trainer.args
    if args.max_steps <= 0:
        return math.ceil(args.num_train_epochs * per_epoch)
    micro_batches = args.max_steps * args.gradient_accumulation_steps
    return math.ceil(micro_batches / (args.steps_per_generation * trainer.num_iterations))
