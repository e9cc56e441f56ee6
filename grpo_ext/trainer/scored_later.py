"""Old log-probs of those completions alone that outlive their policy.

Completions of the policy that takes the step need no pass of their own: their old log-probs are the step's own, without
gradient. Where some completions of a step are older, as groups carried from an earlier generation are, TRL would score all of
them before. Here NaN in `old_per_token_logps` stands for "sampled by the policy of this step", and is filled in when the loss
has scored it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import gather_object
from trl.models.utils import disable_gradient_checkpointing

from grpo_ext.batching.rows import Batch
from grpo_ext.curriculum.groups import Groups
from grpo_ext.trainer.sampler import is_watched

OLD = "old_per_token_logps"


class ScoredLater:
    """Mixin before `GRPOTrainer`, outside of all that scores."""

    _filled: dict[str, Any] | None = None  # the micro-batch whose loss is running

    def _compute_loss(self, model, inputs):
        self._filled = inputs if OLD in inputs else None
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._filled = None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._filled is not None:
            old = self._filled[OLD]  # (B, T)
            self._filled[OLD] = torch.where(old.isnan(), scored[0].detach(), old)
        return scored

    @property
    def _may_score_later(self) -> bool:
        """Whether what a later pass needs is known by then: with truncation that is what the sampler kept."""
        return not self.use_vllm and (not self.sampling.truncated or is_watched(self))

    def _scored_now(self, groups: Groups) -> Groups:
        """Groups that the policy moves on from: the same on all ranks, each of which scores its share.

        Call it before the step that follows the generation.
        """
        table = groups.table
        rows = table[OLD].isnan().any(1).nonzero().flatten()  # (b,)
        if not len(rows):
            return groups
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        share = -(-len(rows) // ranks)
        mine = rows[torch.arange(rank * share, (rank + 1) * share).clamp(max=len(rows) - 1)]  # all ranks equally many
        logps = self._old_logps(table, mine).to(table[OLD])  # (share, T)
        if ranks > 1:
            logps = torch.cat(gather_object([logps.cpu()]))[: len(rows)].to(table[OLD])
        return replace(groups, table={**table, OLD: table[OLD].index_copy(0, rows, logps)})

    @torch.no_grad()
    def _old_logps(self, table: Batch, rows: torch.Tensor) -> torch.Tensor:
        """(b, T), of some rows under the policy as it is."""
        kept = table.get("kept_tokens")
        self._kept_rows = None if kept is None else [kept[i] for i in rows.tolist()]
        ids, mask = (
            torch.cat([table[f"prompt_{field}"][rows], table[f"completion_{field}"][rows]], dim=1).to(
                self.accelerator.device
            )
            for field in ("ids", "mask")
        )
        width, size = table["completion_ids"].size(1), self.args.per_device_train_batch_size
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            return self._get_per_token_logps_and_entropies(self.model, ids, mask, width, batch_size=size)[0]


def unscored(table: Batch) -> Batch:
    """A generation whose old log-probs are those of the step that follows, where TRL has not scored it."""
    blank = torch.full(table["completion_ids"].shape, torch.nan, device=table["completion_ids"].device)
    return {OLD: blank, **table}
