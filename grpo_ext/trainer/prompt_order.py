"""The order of the prompts and their pass rates: the trainer's side of `grpo_ext.curriculum`."""

import math
from pathlib import Path
from typing import Any

from datasets import Dataset

from grpo_ext.common.hashes import prompt_id
from grpo_ext.curriculum.difficulty import difficulty_fault, from_easy_to_hard
from grpo_ext.curriculum.pass_rates import PassRates, read_pass_rates
from grpo_ext.curriculum.sampler import PromptSampler, PromptSupply, Row
from grpo_ext.step.groups import GroupStats
from grpo_ext.trainer.judging import outcomes_of_groups
from grpo_ext.trainer.port import Trainer

# share of the weights in `curriculum: adaptive` that is uniform, so that any prompt can be drawn
UNIFORM_SHARE = 0.1


class PromptOrder:
    """The resumable order of a trainer's prompts.

    It may depend on their pass rates or difficulty.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.rates = make_rates(trainer)
        self.easy_first = make_easy_first(trainer)
        self.sampler: PromptSampler | None = None
        self._state: dict[str, Any] | None = None
        self.further: PromptSupply | None = None  # prompts in addition to the data loader's
        if trainer.args.group_filter == "refill":
            draw = self._draw_further if self.rates is not None else None
            self.further = PromptSupply(
                trainer.train_dataset, trainer.args.seed, trainer.shuffle_dataset, draw
            )

    def make_sampler(self, dataset: Dataset | None) -> PromptSampler:
        """Create the prompt sampler for a call of `train()`, store it in `sampler` and return it.

        Only the length of `dataset` is used; `None` stands for the trainer's training set. If a
        state was loaded from a checkpoint, it is restored in this sampler and not used again.
        """
        trainer = self.trainer
        args = trainer.args
        prompts = args.generation_batch_size // trainer.num_generations
        rows = len(trainer.train_dataset if dataset is None else dataset)
        self.sampler = PromptSampler(
            rows,
            prompts,
            trainer.num_generations,
            trainer.num_iterations * args.steps_per_generation,
            args.seed,
            trainer.shuffle_dataset,
            self.rates,
            UNIFORM_SHARE,
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
        """Update the pass rates, if there are any, with the groups of all ranks.

        Args:
            prompts: the row of each group.
            stats: the statistics of the groups, in the same order.
        """
        if self.rates is None:
            return
        right_counts = stats.right.tolist()
        scored_counts = stats.scored.tolist()
        for row, right, scored in zip(prompts, right_counts, scored_counts, strict=True):
            self.rates.observe(prompt_id(row["prompt"]), right, scored)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is the same on all ranks."""
        return {
            "order": self.sampler.state_dict() if self.sampler else None,
            "further": self.further.state_dict() if self.further else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; the next `make_sampler` restores the order."""
        self._state = state["order"]  # for the sampler of the next `train()`
        if self.further is not None:
            self.further.load_state_dict(state["further"])


def make_rates(trainer: Trainer) -> PassRates | None:
    """Return the initial pass rates for `curriculum: adaptive`; `None` for other curricula.

    Raises:
        ValueError: if a curriculum is set and the dataset is a stream, or if a line of
            `pass_rates_file` does not describe a completion or lacks the outcome reward.
        OSError: if `pass_rates_file` cannot be read.
    """
    args = trainer.args
    dataset = trainer.train_dataset
    if args.curriculum == "none":
        return None
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"`curriculum: {args.curriculum}` needs to choose among all rows, but the dataset is "
            "a stream. Set `curriculum: none`, or load the dataset without streaming."
        )
    if args.curriculum != "adaptive":
        return None
    known_rates = None
    if args.pass_rates_file:
        path = Path(args.pass_rates_file).expanduser()
        rewards = [trainer.reward_func_names[i] for i in outcomes_of_groups(trainer)]
        known_rates = read_pass_rates(path, rewards, args.pass_threshold)
    prompt_ids = [prompt_id(prompt) for prompt in dataset["prompt"]]
    return PassRates(prompt_ids, args.pass_rate_decay, known_rates)


def make_easy_first(trainer: Trainer) -> list[int] | None:
    """Return the row indices from easy to hard for `curriculum: easy_to_hard`, otherwise `None`.

    Raises:
        ValueError: if the difficulty column is missing or not numeric.
    """
    args = trainer.args
    dataset = trainer.train_dataset
    if args.curriculum != "easy_to_hard":
        return None
    column = str(args.difficulty_column)
    fault = difficulty_fault(column, dataset.column_names, lambda: dataset[column])
    if fault:
        raise ValueError(fault)
    return from_easy_to_hard(dataset[column], args.seed)


def generations_of_run(trainer: Trainer, per_epoch: int) -> int:
    """Return the number of generations of a whole run.

    `per_epoch` is the number of generations per epoch, which is used unless `max_steps` is set.
    """
    args = trainer.args
    if args.max_steps <= 0:
        return math.ceil(args.num_train_epochs * per_epoch)
    micro_batches = args.max_steps * args.gradient_accumulation_steps
    return math.ceil(micro_batches / (args.steps_per_generation * trainer.num_iterations))
