"""Play episodes with transformers' `generate`, in rounds of one call each.

During a call, a row whose environment answers in the background leaves the batch at the end of its
turn, while decoding continues for the other rows. When every row has ended or is waiting, the
answers are collected, and the next call continues with the tokens so far as its prompts. The rows
of a call, and therefore the sampled tokens, depend only on the tokens so far, never on how long an
answer takes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_ext.environments.episode import Episode, hear_all
from grpo_ext.environments.played_episodes import of_episodes
from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import Request
from grpo_ext.step.records import Generation

Part = TypeVar("Part")


def rounds(episodes: Sequence[Episode]) -> Iterator[list[int]]:
    """Yield the indices of the episodes for each call of `generate`, until all episodes have ended.

    Between two calls, wait for the environments' answers and append them to the episodes. All ranks
    must iterate together, because the ranks of a sharded model must make the same number of calls.
    A rank whose episodes have all ended therefore gets `[0]`; because episode 0 has ended, its row
    leaves `generate` at once.

    Args:
        episodes: this rank's episodes.
    """
    while True:
        running = [row for row, episode in enumerate(episodes) if not episode.ended]
        if not any(gather_object([bool(running)])):
            return
        yield running or [0]
        hear_all([episode for episode in episodes if episode.asking])
        for episode in episodes:
            while episode.pending:
                episode.read()


class TokenRecord:
    """Log-probs and kept tokens of an episode, in the order of its tokens.

    For an answer that was read between two calls of `generate`, log-probs are NaN, and each token
    is the only kept one at its position.
    """

    def __init__(self) -> None:
        self._logps: list[Tensor] = []
        self._kept: list[KeptSet] = []
        self._length = 0  # number of recorded tokens

    def add(self, ids: list[int], first: int, logps: Tensor | None, kept: KeptSet | None) -> None:
        """Record the tokens of a `generate` call, and those of the environment's answer before it.

        Args:
            ids: all tokens of the episode so far.
            first: the index of the call's first token in `ids`.
            logps: the log-probs of the call's tokens; `None` if they were not recorded.
            kept: the kept tokens at the positions of the call; `None` if sampling was not truncated
                or they were not recorded.
        """
        answer = ids[self._length : first]
        if logps is not None:
            self._logps += [logps.new_full((len(answer),), torch.nan), logps]
        if kept is not None:
            self._kept += [KeptSet.of_tokens(answer, kept.vocab_size), kept]
        self._length = len(ids)

    @property
    def logps(self) -> Tensor | None:
        """The log-prob of each token; `None` if none were recorded."""
        return torch.cat(self._logps) if self._logps else None

    @property
    def kept(self) -> KeptSet | None:
        """The kept tokens at each position; `None` if none were recorded."""
        return KeptSet.cat(self._kept) if self._kept else None


def played(request: Request, records: Sequence[TokenRecord]) -> Generation:
    """Return the generation for a request whose episodes have ended.

    The log-probs are taken from `records`, which has one record per episode. If any record has no
    log-probs, those of the generation are `None`. The same applies to the kept tokens.
    """
    generation = Generation(
        prompt_ids=request.prompt_ids,
        completion_ids=[episode.ids for episode in request.episodes],
        policy_step=request.policy_step,
        sampling_logps=complete([record.logps for record in records]),
        kept=complete([record.kept for record in records]),
    )
    return of_episodes(generation, request.episodes)


def complete(parts: Sequence[Part | None]) -> list[Part] | None:
    """Return the parts as a list, or `None` if any of them is `None`."""
    found = [part for part in parts if part is not None]
    return found if len(found) == len(parts) else None
