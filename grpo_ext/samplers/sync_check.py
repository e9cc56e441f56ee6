"""Whether vLLM has the trainer's weights: the log-probs of what it just sampled are those that the trainer gives them.

A tensor that did not arrive (a tied output head that the engine keeps a copy of) leaves greedy text nearly as it was, and is
seen in log-probs at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ext.samplers.vllm import OurVLLM
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Scored
from grpo_ext.vllm import EngineFailure

ROWS = 4  # completions that are scored again


@dataclass(eq=False)
class SyncCheck:
    """Compares log-probs after the first weight sync and every so many syncs."""

    vllm: OurVLLM  # that samples
    every: int  # syncs from one check to the next; at least 1
    limit: float | None  # mean absolute difference that ends the run; `None`: 0.001 in float32, else 0.2
    truncated: bool  # whether sampling is truncated
    _checked: int | None = None  # the sync after which it was last compared

    def difference(self, table: Scored, score: Callable[[Scored], Tensor], ranks: Ranks) -> float | None:
        """The mean absolute difference of log-probs; `None` where no check is due, or no token counts. All ranks call it.

        `table` is what the engine has just sampled; `score` gives log-probs (b, T) of a table under the trainer's policy,
        without dropout. `EngineFailure` on all ranks, if the difference is above the limit.
        """
        due = self._checked is None or self.vllm.syncs - self._checked >= self.every
        if not due or table.sampling_per_token_logps is None:
            return None
        if self.limit is None:
            self.limit = 1e-3 if self.vllm.dtype() == "float32" else 0.2
        total, tokens = ranks.total(torch.stack(self._apart(table, score))).tolist()
        if not tokens:  # all of them were cut off and are masked
            return None
        self._checked, difference = self.vllm.syncs, total / tokens
        if not difference <= self.limit:
            raise EngineFailure(
                f"vLLM's log-probs are {difference:.3g} from the trainer's on average, and at most {self.limit:g} was "
                "expected (vllm_sync_check_limit): the engine does not compute with the weights that it was given."
            )
        return difference

    @torch.no_grad()
    def _apart(self, table: Scored, score: Callable[[Scored], Tensor]) -> tuple[Tensor, Tensor]:
        """Summed difference of a few completions of this rank, and the number of their tokens.

        Where sampling is truncated, without the tenth of the tokens that differ most: a token on the edge of the kept set may
        fall on either side of it by rounding.
        """
        few = table.take(torch.arange(min(ROWS, len(table))))
        sampled = few.sampling_per_token_logps
        assert sampled is not None
        difference = (score(few) - sampled)[few.loss_mask.bool() & ~sampled.isnan()].abs().float()
        if self.truncated:
            difference = difference.sort().values[: 9 * len(difference) // 10]
        return difference.sum(), difference.new_tensor(difference.numel())
