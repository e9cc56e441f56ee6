"""The order in which prompts are trained on, generation by generation.

    none          each epoch a new permutation: TRL's own, also after a resume in a later epoch
    easy_to_hard  each epoch from prompts that are often solved to those that are not
    adaptive      by the chance that some of a group pass and some do not
    easy_pool     at random, but what is always solved seldom (MiMo, arXiv 2505.07608)

The last two draw each generation anew by what is known at that time, without passes over the data. Every draw has a random
state of its own, made from seed, epoch and its number, so that there is no state to lose.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from grpo_ext.curriculum.pass_rates import PassRates

_STREAM, _FURTHER = 2, 3  # keep these draws apart from others with the same seed


@dataclass
class Curriculum:
    """How likely each prompt is to be drawn."""

    kind: str = "none"  # or "easy_to_hard", "adaptive", "easy_pool"
    num_generations: int = 1  # G, completions a prompt
    rates: PassRates | None = None  # what is known of each prompt; `None` for "none" alone
    difficulty: np.ndarray | None = field(default=None, repr=False)  # (rows,), larger is harder; for "easy_to_hard"
    floor: float = 0.1  # share of the draws that "adaptive" makes evenly over all prompts
    easy_share: float = 0.1  # share of the draws that "easy_pool" makes from what is always solved

    def probabilities(self) -> np.ndarray:
        """(rows,), of the next draw; they sum to 1."""
        assert self.rates is not None
        if self.kind == "adaptive":
            chance = self.rates.chance_of_signal(self.num_generations)
            return (1 - self.floor) * chance / chance.sum() + self.floor / len(chance)
        easy = self.rates.always_solved()
        if easy.all() or not easy.any():
            return np.full(len(easy), 1 / len(easy))
        return np.where(easy, self.easy_share / easy.sum(), (1 - self.easy_share) / (~easy).sum())

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """(rows,), all prompts from easy to hard; those equally hard in random order."""
        assert self.difficulty is not None
        shuffled = rng.permutation(len(self.difficulty))
        return shuffled[np.argsort(self.difficulty[shuffled], kind="stable")]


@dataclass(eq=False, repr=False)
class PromptSampler(Sampler):
    """Indices in the order that TRL's `RepeatSampler` gives them: prompt by prompt for a generation, each `num_generations`
    times, the whole `repeat_count` times.
    """

    rows: int  # length of the data set
    prompts: int  # of a generation
    num_generations: int  # completions a prompt
    repeat_count: int  # how often a generation's indices are given
    seed: int  # of the order
    shuffle: bool = True  # `False`: "none" keeps the data set's order
    curriculum: Curriculum = field(default_factory=Curriculum)  # how prompts are chosen
    epoch: int = 0
    drawn: list[list[int]] = field(default_factory=list)  # the epoch's generations, given again where it begins again

    def __len__(self) -> int:
        return self.rows // self.prompts * self.prompts * self.num_generations * self.repeat_count

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the trainer calls it."""
        if epoch != self.epoch:
            self.epoch, self.drawn = epoch, []

    def __iter__(self) -> Iterator[int]:
        fixed = self._fixed_order()
        for number in range(self.rows // self.prompts):
            for _ in range(self.repeat_count):
                for index in self._generation(number, fixed):
                    yield from [index] * self.num_generations

    def _fixed_order(self) -> list[int] | None:
        """The epoch's order where it is known at its start."""
        if self.curriculum.kind == "easy_to_hard":
            return self.curriculum.order(np.random.default_rng((self.seed, _STREAM, self.epoch))).tolist()
        if self.curriculum.kind != "none":
            return None
        if not self.shuffle:
            return list(range(self.rows))
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):  # TRL draws an epoch after the other from one generator
            torch.randperm(self.rows, generator=generator)
        return torch.randperm(self.rows, generator=generator).tolist()

    def _generation(self, number: int, fixed: list[int] | None) -> list[int]:
        """The prompts of the epoch's generation `number`."""
        if fixed is not None:
            chosen = fixed[number * self.prompts : (number + 1) * self.prompts]
        elif number < len(self.drawn):
            return self.drawn[number]
        else:
            rng = np.random.default_rng((self.seed, _STREAM, self.epoch, number))
            chosen = self._draw(rng, self.prompts)
        if number == len(self.drawn) and self.curriculum.kind != "none":
            self.drawn.append(chosen)
        return chosen

    def _draw(self, rng: np.random.Generator, num: int) -> list[int]:
        probabilities = self.curriculum.probabilities()
        return rng.choice(self.rows, num, replace=num > self.rows, p=probabilities).tolist()

    def draw_further(self, num: int, position: int) -> list[int]:
        """So many prompts beyond those of the epoch's order, by the same curriculum; `position` were drawn before."""
        rng = np.random.default_rng((self.seed, _FURTHER, position))
        if self.curriculum.kind == "easy_to_hard":  # what has been reached
            reached = [index for generation in self.drawn for index in generation]
            return rng.choice(reached or (self._fixed_order() or [])[: self.prompts], num).tolist()
        return self._draw(rng, num)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on with the same order."""
        rates = self.curriculum.rates
        return {
            "epoch": self.epoch,
            "drawn": [list(generation) for generation in self.drawn],
            "rates": None if rates is None else rates.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.drawn = state["epoch"], [list(generation) for generation in state["drawn"]]
        if self.curriculum.rates is not None:
            self.curriculum.rates.load_state_dict(state["rates"])
