"""Play episodes within one `generate` call: rows continue after each turn.

When the model's turn in a row ends, the row's environment answers. The tokens of the answer are
forced on the row, one per step, while other rows are sampled. Every token goes through the model
only once. While tokens are forced on all rows, the model is not called; afterwards, it processes
those tokens in a single pass. A row ends with its episode, or when its environment answers in the
background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import BoolTensor, FloatTensor, LongTensor, Tensor
from transformers import LogitsProcessor, StoppingCriteria

if TYPE_CHECKING:
    from grpo_ext.environments.episode import Episode


class Player(LogitsProcessor):
    """Logits processor that advances an episode for each row of a `generate` call, token by token.

    While an answer is forced on a row, only the answer's next token is allowed there.

    Args:
        episodes: the episode of each row.
    """

    def __init__(self, episodes: Sequence[Episode]):
        self.episodes = list(episodes)  # one for each row still being decoded
        self._width: int | None = None  # number of tokens seen per row

    @property
    def began(self) -> bool:
        """Whether `generate` has run this processor."""
        return self._width is not None

    def see(self, input_ids: Tensor) -> None:
        """Advance each episode by the last token of its row in `input_ids` (b, P + t).

        The first call, with only the prompts, does not change the episodes, nor do further calls
        with the same length.
        """
        before = self._width
        self._width = input_ids.size(1)
        if before in (None, self._width):
            return
        for episode, token in zip(self.episodes, input_ids[:, -1].tolist(), strict=True):
            if episode.pending:
                episode.read()
            elif not episode.ended and not episode.waits and episode.write(token):
                episode.ask()
        for episode in self.episodes:
            if episode.asking and not episode.waits:
                episode.hear()

    def __call__(self, input_ids: LongTensor, scores: FloatTensor) -> FloatTensor:
        self.see(input_ids)
        rows = []
        tokens = []
        for row, episode in enumerate(self.episodes):
            if episode.pending:
                rows.append(row)
                tokens.append(episode.pending[0])
        if rows:
            # the recorder still needs the unchanged scores
            scores = cast(FloatTensor, scores.clone())
            scores[rows] = -torch.inf
            scores[rows, tokens] = 0.0
        return scores

    def gives_all(self) -> bool:
        """Return whether the next token of every active row comes from the row's environment."""
        return all(episode.pending or episode.ended or episode.waits for episode in self.episodes)

    def select_rows(self, input_ids: LongTensor, rows: LongTensor) -> None:
        """Continue with only the rows at the indices `rows`, (b',); `input_ids` is ignored."""
        self.episodes = [self.episodes[row] for row in rows.tolist()]


class EpisodeEnds(StoppingCriteria):
    """Stopping criterion that ends a row when its episode ends or waits for an answer.

    Unlike in ordinary generation, an end token alone does not end the row. The criterion has an
    `eos_token_id` nevertheless, because `generate` pads ended rows only if a criterion has one.

    Args:
        player: the player of the same `generate` call.
        eos_token_id: the end tokens.
    """

    def __init__(self, player: Player, eos_token_id: Tensor):
        self.player = player
        self.eos_token_id = eos_token_id

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **kwargs: object) -> BoolTensor:
        self.player.see(input_ids)
        ended = [episode.ended or episode.waits for episode in self.player.episodes]
        # mypy does not know that the dtype is bool
        return torch.tensor(ended, device=input_ids.device)  # type: ignore[return-value]
