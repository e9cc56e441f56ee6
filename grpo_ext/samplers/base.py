"""What every sampler can do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grpo_ext.environments.episode import Episode
from grpo_ext.step.records import Generation


@dataclass(frozen=True)
class Request:
    """A generation that is asked for.

    Args:
        prompts: B texts or conversations, those of this rank; the copies of one prompt stand beside each other.
        prompt_ids: B lists of tokens; empty where the sampler makes tokens of the prompts itself.
        num_generations: copies of each prompt, over all ranks.
        policy_step: the optimizer step whose weights are to sample.
        temperature: to sample at.
        episodes: of several turns, one a prompt; empty where a completion is one turn.
    """

    prompts: list[Any]
    prompt_ids: list[list[int]]
    num_generations: int
    policy_step: int
    temperature: float
    episodes: list[Episode] = field(default_factory=list)


class Sampler:
    """Completes prompts. All ranks call `load_weights`, `submit` and `collect`, in this order, for each generation.

    A sampler gives `sample`. One that works while the trainer does gives `submit` and `collect` instead.

    Attributes:
        name: as users know it.
        separate: it is another engine, whose own log-probs of each token correct the gradient.
        watched: it tells which tokens truncation kept, so that any truncation is scored exactly.
        tokenizes: it makes tokens of prompts itself.
        plays: it plays episodes of several turns.
        order: the order of its truncations, "hf" or "vllm".
    """

    name: str
    separate = False
    watched = False
    tokenizes = False
    plays = False
    order = "hf"

    _asked: Request | None = None

    def submit(self, request: Request) -> None:
        """Ask for a generation."""
        self._asked = request

    def collect(self) -> Generation:
        """The generation that was asked for."""
        request, self._asked = self._asked, None
        assert request is not None, "submit comes before collect"
        return self.sample(request)

    def sample(self, request: Request) -> Generation:
        """Complete the prompts."""
        raise NotImplementedError

    def load_weights(self, step: int) -> None:
        """Take the trainer's weights of this optimizer step, where the sampler has a copy of its own."""
