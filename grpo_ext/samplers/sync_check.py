"""Check that a separate sampler has the trainer's weights: compare its log-probs of completions with those of the trainer.

A tensor that did not arrive, such as a tied output head that the engine copies, hardly changes greedy text, but changes
log-probs at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.vllm import OurVLLM
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Scored
from grpo_ext.vllm import EngineFailure

ROWS = 4  # number of completions that are scored again


@dataclass(eq=False)
class SyncCheck:
    """Compares log-probs after the first weight sync, and then at regular intervals."""

    engine: OurVLLM | ProcessSampler
    every: int  # number of syncs from one check to the next; at least 1
    limit: float | None  # mean absolute difference above which the run ends; `None`: 0.001 in float32, else 0.2
    truncated: bool  # whether sampling is truncated
    _checked: int | None = None  # the sync of the last check

    @property
    def due(self) -> bool:
        """Whether the next completions are compared."""
        return self._checked is None or self.engine.syncs - self._checked >= self.every

    def difference(self, table: Scored, score: Callable[[Scored], Tensor], ranks: Ranks) -> float | None:
        """Return the mean absolute difference of log-probs; `None` if no check is due, or no token counts. All ranks call it.

        `table` has the completions that the engine has just sampled. `score` returns log-probs (b, T) of a table under the
        trainer's policy, without dropout. `EngineFailure` on all ranks, if the difference is above the limit.
        """
        if not self.due or table.sampling_per_token_logps is None:
            return None
        if self.limit is None:
            self.limit = 1e-3 if self.engine.dtype() == "float32" else 0.2
        total, tokens = ranks.total(torch.stack(self._apart(table, score))).tolist()
        if not tokens:  # all of them are truncated and masked
            return None
        self._checked, difference = self.engine.syncs, total / tokens
        if not difference <= self.limit:
            raise EngineFailure(
                f"The sampler's log-probs differ by {difference:.3g} on average from the trainer's, and at most {self.limit:g} "
                "was expected (vllm_sync_check_limit): the engine does not compute with the weights that it was given."
            )
        return difference

    @torch.no_grad()
    def _apart(self, table: Scored, score: Callable[[Scored], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the sum of the differences for a few completions of this rank, and the number of their tokens.

        If sampling is truncated, the tenth of the tokens that differ most is left out: rounding may keep or remove a token at
        the edge of the kept set.
        """
        few = table.take(torch.arange(min(ROWS, len(table))))
        sampled = few.sampling_per_token_logps
        assert sampled is not None
        difference = (score(few) - sampled)[few.loss_mask.bool() & ~sampled.isnan()].abs().float()
        if self.truncated:
            difference = difference.sort().values[: 9 * len(difference) // 10]
        return difference.sum(), difference.new_tensor(difference.numel())
