"""The interface of every sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_ext.environments.episode import Episode
from grpo_ext.step.records import Generation, PartialRollout

# A check of another engine's weights reads this many completions of a rank,
FEW = 4
# and this many tokens of each.
FEW_TOKENS = 4


@dataclass(frozen=True)
class Request:
    """A request for a generation."""

    #: B texts or conversations of this rank; the copies of one prompt are adjacent
    prompts: list[Any]
    prompt_ids: list[list[int]]  #: B lists of tokens; empty if the sampler tokenizes prompts itself
    num_generations: int  #: copies of each prompt, over all ranks
    policy_step: int  #: the optimizer step whose weights must sample
    #: one per prompt; empty if a completion is one turn
    episodes: list[Episode] = field(default_factory=list)
    #: of the data set, one per prompt, if the sampler reorders them
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: the maximum number of tokens of a completion, if it is not `max_completion_length`
    most: int | None = None


class Sampler:
    """Completes prompts. All ranks call `load_weights`, `submit` and `collect`, in this order, for
    each generation.

    A subclass defines `sample`, and `submit` if it works at the same time as the trainer.
    """

    name: str  #: the name in logs
    separate = False  #: whether it is another engine, whose log-probs correct the gradient
    #: whether it returns the tokens that truncation kept, so that any truncation is scored exactly
    watched = False
    tokenizes = False  #: whether it tokenizes prompts itself
    plays = False  #: whether it plays episodes of several turns
    order = "hf"  #: the order of its truncations, "hf" or "vllm"

    seconds = 0.0  #: that the last generation took

    rounds: tuple[int, ...] = ()  #: the sizes that `under_way` depends on
    #: completions that a later generation returns (`partial_rollouts`)
    under_way: Sequence[PartialRollout] = ()

    _asked: Request | None = None

    def submit(self, request: Request) -> None:
        """Start a generation."""
        self._asked = request

    def collect(self) -> Generation:
        """Return the generation that `submit` has started."""
        request = self._asked
        self._asked = None
        assert request is not None, "call submit before collect"
        return self.sample(request)

    def sample(self, request: Request) -> Generation:
        """Complete the prompts, or return the completions that `submit` has started."""
        raise NotImplementedError

    def sample_few(self, request: Request) -> Generation:
        """Complete a few prompts of a request by a few tokens, to see which weights another engine
        has.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop any background work. The next request restarts it."""
        self._asked = None

    def load_weights(self, step: int) -> None:
        """Take the trainer's weights of this optimizer step, if the sampler has a separate copy."""
