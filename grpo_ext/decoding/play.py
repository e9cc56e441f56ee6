"""Episodes within one call of `generate`: a row goes on where its turn ended, and nothing is read twice.

When a turn of the model ends, its environment answers. The answer's tokens are forced on the row, one a step, beside rows that
are being sampled; they go through the model once, like any other token, and together where all rows read answers. A row ends
with its episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import LogitsProcessor, StoppingCriteria


class Playable(Protocol):
    """What `Player` knows of an episode; see `grpo_ext.environments.episode`."""

    ended: bool
    pending: deque[int]

    def write(self, token: int) -> bool: ...

    def read(self) -> None: ...

    def end_turn(self) -> None: ...


class Player:
    """Follows the rows of one `generate` token by token, and lets the episodes go on.

    Args:
        episodes: one a row.
    """

    def __init__(self, episodes: Sequence[Playable]):
        self._of_row = list(episodes)  # of the rows that are still decoded
        self._width: int | None = None  # tokens a row that were seen

    def see(self, input_ids: torch.Tensor) -> None:
        """Take the last token of each row (b, P + t), once; the first call shows the prompts."""
        width = input_ids.size(1)
        if width == self._width:
            return
        first, self._width = self._width is None, width
        if first:
            return
        for episode, token in zip(self._of_row, input_ids[:, -1].tolist(), strict=True):
            if episode.pending:
                episode.read()
            elif not episode.ended and episode.write(token):
                episode.end_turn()

    def forced(self) -> list[tuple[int, int]]:
        """Rows whose next token is their environment's, with that token."""
        return [(row, episode.pending[0]) for row, episode in enumerate(self._of_row) if episode.pending]

    def all_forced(self) -> bool:
        """Whether every row that goes on has its next token from its environment."""
        return all(episode.pending or episode.ended for episode in self._of_row)

    def ended(self) -> list[bool]:
        """Which rows' episodes are over."""
        return [episode.ended for episode in self._of_row]

    def select_rows(self, rows: torch.Tensor) -> None:
        """Go on with some of the rows."""
        self._of_row = [self._of_row[row] for row in rows.tolist()]


class AnswerTokens(LogitsProcessor):
    """Leaves a row that reads an answer no other token than the answer's next."""

    def __init__(self, player: Player):
        self.player = player

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.player.see(input_ids)
        if forced := self.player.forced():
            rows, tokens = (torch.tensor(part, device=scores.device) for part in zip(*forced, strict=True))
            scores[rows] = -torch.inf
            scores[rows, tokens] = 0.0
        return scores

    def gives_all(self) -> bool:
        return self.player.all_forced()

    def select_rows(self, input_ids: torch.LongTensor, rows: torch.LongTensor) -> None:
        self.player.select_rows(rows)


class EpisodeEnds(StoppingCriteria):
    """A row ends with its episode, in place of its first end token.

    Args:
        eos_token_id: as `EosTokenCriteria` has it: its presence tells `generate` to pad rows that have ended.
    """

    def __init__(self, player: Player, eos_token_id: torch.Tensor):
        self.player, self.eos_token_id = player, eos_token_id

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        self.player.see(input_ids)
        return torch.tensor(self.player.ended(), device=input_ids.device)  # type: ignore[return-value]  # of bool
