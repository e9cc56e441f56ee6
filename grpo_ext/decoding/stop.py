"""End completions of a single turn at stop strings.

`generate` can do so itself, but only with a tokenizer, which TRL does not pass. A row that has
ended is padded, and TRL cuts rows only after an end token, so `StopStrings.cut` removes the
padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import BoolTensor, FloatTensor, LongTensor
from transformers import StoppingCriteria

if TYPE_CHECKING:
    from grpo_ext.common.stop_strings import StopStrings


class StopStringEnds(StoppingCriteria):
    """Stopping criterion that ends a row at the token that completes a stop string.

    Use a new instance for each `generate` call, because it remembers the length of the prompts.

    Args:
        stops: the stop strings to look for.
    """

    def __init__(self, stops: StopStrings):
        self.stops = stops
        self._width: int | None = None  # number of tokens of a prompt, with its padding

    def __call__(self, input_ids: LongTensor, scores: FloatTensor, **kwargs: object) -> BoolTensor:
        if self._width is None:
            self._width = input_ids.size(1) - 1
        first = max(self._width, input_ids.size(1) - self.stops.most_tokens)
        ended = [self.stops.end_with(ids, 0) for ids in input_ids[:, first:].tolist()]
        # mypy does not know that the dtype is bool
        return torch.tensor(ended, device=input_ids.device)  # type: ignore[return-value]
