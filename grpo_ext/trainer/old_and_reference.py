"""Log-probs under the policy that sampled (old) and under the reference, taken before a generation is trained on.

Completions of the policy that takes the step need no pass of their own: their old log-probs are the step's, without gradient.
Scored beforehand are those that are trained on in a later step, those of another engine, and groups that are carried over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.aggregate import Stat
from grpo_ext.objective.correction import sampler_correction
from grpo_ext.objective.policy import ratios_move
from grpo_ext.samplers.sync_check import SyncCheck
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.scoring import reference_of, without_checkpointing
from grpo_ext.step.metrics import StepStats
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Scored


@dataclass
class OldAndReference:
    """Scores tables before they are trained on."""

    trainer: Any
    scorer: Scorer
    ranks: Ranks
    corrects: bool  # the sampler is another engine, whose log-probs correct the gradient
    told: bool  # the sampler tells which tokens truncation kept
    sync_check: SyncCheck | None  # compares another engine's log-probs with the trainer's

    def __post_init__(self) -> None:
        args = self.trainer.args
        passes = args.steps_per_generation * self.trainer.num_iterations
        self.outlives = ratios_move(args.gradient_accumulation_steps, passes)
        self.finds_kept = self.scorer.params.truncated and not self.told

    def __call__(self, table: Scored) -> Scored:
        """The table with `old_per_token_logps`, `ref_per_token_logps`, `importance_sampling_ratio` and `kept` where needed."""
        with torch.no_grad(), without_checkpointing(self.trainer):
            outlives = self.outlives and self.trainer.model.training
            if outlives or self.corrects or (self.finds_kept and self.trainer.beta):
                table = self._old(table)
            if self.trainer.beta:
                table = self._reference(table)
        if self.corrects:
            table = self._corrected(table)
        return table

    def with_kept(self, table: Scored) -> Scored:
        """The table with `old_per_token_logps` and `kept`, which a pass finds before the policy moves on."""
        with torch.no_grad(), without_checkpointing(self.trainer):
            return self._old(table)

    def check_sync(self, table: Scored) -> None:
        """Compare vLLM's log-probs of what it has just sampled with ours, where that is due; log the difference.

        Call it before older completions are put beside them: those have log-probs of older weights.
        """
        if self.sync_check is None:
            return
        images = torch.tensor(float(bool(table.model_inputs)), device=self.ranks.device)
        if self.ranks.total(images) > 0:  # of any rank: all of them compare, or none
            return
        difference = self.sync_check.difference(table, self.policy_logps, self.ranks)
        if difference is not None:
            seam.metrics_of(self.trainer)["sampling/sync_difference"].append(difference)

    def policy_logps(self, table: Scored) -> Tensor:
        """(B, T), under the policy as it is, without dropout; whatever the table says was kept."""
        training = self.trainer.model.training
        self.trainer.model.eval()  # another engine drops nothing out
        try:
            return self.scorer.score(self.trainer.model, replace(table, kept=None), len(table)).logps
        finally:
            self.trainer.model.train(training)

    def scored_everywhere(self, table: Scored) -> Scored:
        """A table of all ranks that the policy moves on from, with old log-probs; each rank scores its share.

        Call it before the step that follows the generation.
        """
        old = table.old_per_token_logps
        missing = torch.ones(len(table), dtype=torch.bool) if old is None else old.isnan().any(1).cpu()
        rows = missing.nonzero().flatten()  # (b,)
        if not len(rows):
            return table
        ranks = self.ranks
        share = -(-len(rows) // ranks.count)
        places = torch.arange(ranks.index * share, (ranks.index + 1) * share).clamp(max=len(rows) - 1)
        mine = table.take(rows[places], trim=False).on(ranks.device)  # all ranks score equally many
        with torch.no_grad(), without_checkpointing(self.trainer):
            logps = self.scorer.score(self.trainer.model, mine, self._block).logps
        found = torch.cat(ranks.gather_objects([logps.cpu()]))[: len(rows)]
        old = torch.full((len(table), table.width), torch.nan) if old is None else old.cpu()
        return replace(table, old_per_token_logps=old.index_copy(0, rows, found).to(table.completion_ids.device))

    @property
    def _block(self) -> int:
        args = self.trainer.args
        return args.per_device_train_batch_size if self.trainer.model.training else args.per_device_eval_batch_size

    def _old(self, table: Scored) -> Scored:
        old = table.old_per_token_logps
        if old is not None and not old.isnan().any() and (table.kept is not None or not self.finds_kept):
            return table
        scores = self.scorer.score(self.trainer.model, table, self._block)
        logps = scores.logps if old is None else torch.where(old.isnan(), scores.logps, old)
        return replace(table, old_per_token_logps=logps, kept=scores.kept)

    def _reference(self, table: Scored) -> Scored:
        if table.ref_per_token_logps is not None:
            return table
        if self.scorer.params.truncated and table.kept is None:
            raise RuntimeError("The reference came to be scored before it is known which tokens the policy kept.")
        with reference_of(self.trainer) as model:
            logps = self.scorer.score(model, table, self._block).logps
        return replace(table, ref_per_token_logps=logps)

    def _corrected(self, table: Scored) -> Scored:
        args, old, sampled = self.trainer.args, table.old_per_token_logps, table.sampling_per_token_logps
        assert old is not None
        if sampled is None:
            raise ValueError(
                f"The sampler ({self.trainer.parts.sampler.name}) gave no log-probs, which its correction is made "
                "of. Let it give them, or set vllm_importance_sampling_correction: false."
            )
        bounds = args.vllm_importance_sampling_clip_min, args.vllm_importance_sampling_clip_max
        mask = table.loss_mask
        ratio = sampler_correction(old, sampled, mask, args.vllm_importance_sampling_mode, *bounds)
        apart = (old - sampled)[mask.bool() & ~sampled.isnan()].abs()
        used = ratio.flatten() if ratio.size(1) == 1 else ratio[mask.bool()]
        stats, number = StepStats(), float(len(used))
        stats.note(
            {
                "sampling_logp_difference/mean": Stat(apart.sum(), float(len(apart))),
                "sampling_logp_difference/max": Stat(apart.amax() if len(apart) else 0.0, float(len(apart)), "max"),
                "importance_sampling_ratio/mean": Stat(used.sum(), number),
                "importance_sampling_ratio/min": Stat(used.amin() if number else 0.0, number, "min"),
                "importance_sampling_ratio/max": Stat(used.amax() if number else 0.0, number, "max"),
            }
        )
        metrics = seam.metrics_of(self.trainer)
        for name, value in stats.settle(self.ranks.gather, self.ranks.device).items():
            metrics[f"sampling/{name}"].append(value)
        return replace(table, importance_sampling_ratio=ratio)
