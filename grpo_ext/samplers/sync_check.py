"""Check that a separate sampler has the trainer's weights: by checksums of them, and by its
log-probs of completions.

A tensor that did not arrive, such as a tied output head that the engine copies, hardly changes
greedy text, but changes log-probs at once. After an update at a learning rate of 1e-6, the
difference is below the rounding of bfloat16. Then checksums show that no weights were sent, and a
few tensors of a colocated engine show that weights did not arrive.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_ext.samplers.base import FEW, Sampler
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.vllm import OurVLLM, VLLMSampler
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.vllm import weights_held
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Scored
from grpo_ext.vllm import EngineFailure


class SyncCheck:
    """Compares log-probs after the first weight sync, and then every `vllm_sync_check_steps` syncs.

    It never compares if the trainer itself samples, or if our log-probs are not those of the policy
    that samples.
    """

    def __init__(self, trainer: SampledTrainer, sampler: Sampler, scorer: Scorer, ranks: Ranks):
        args = trainer.args
        self.trainer = trainer
        self.scorer = scorer
        self.ranks = ranks
        self.every = args.vllm_sync_check_steps
        self.engine: Any = sampler.vllm if isinstance(sampler, VLLMSampler) else sampler
        truncated = args.top_k or args.top_p < 1 or args.min_p or args.generation_kwargs
        same = args.logprob_policy == "sampling" or not truncated
        same &= args.logprob_policy != "model" or args.temperature == 1.0
        self.compares = (
            bool(self.every) and same and isinstance(self.engine, OurVLLM | ProcessSampler)
        )
        self._checked: int | None = None  # the sync of the last check
        self._sent: tuple[int, list[int]] = (
            -1,
            [],
        )  # the last sync that was seen, and the checksums of its weights
        self._arrived: set[str] | None = (
            None  # tensors of the engine that equalled ours after the first sync
        )

    @property
    def due(self) -> bool:
        """Whether the next completions are compared."""
        return self.compares and (
            self._checked is None or self.engine.syncs - self._checked >= self.every
        )

    def check(self, table: Scored) -> None:
        """Log the mean absolute difference of log-probs in `table`, if a check is due. All ranks
        call it.

        `table` has the completions that the engine has just sampled, without carried groups, whose
        log-probs are of older weights. `EngineFailure` on all ranks, if the difference is above the
        limit.
        """
        self.refuse_stale()
        if not self.due or self.ranks.any(
            bool(table.model_inputs) or table.sampling_per_token_logps is None
        ):
            return
        total, tokens = self.ranks.total(torch.stack(self._apart(table))).tolist()
        if not tokens:  # all of them are truncated and masked
            return
        self._checked = self.engine.syncs
        difference = total / tokens
        exact = (
            self.trainer.accelerator.mixed_precision == "no" and self.engine.dtype() == "float32"
        )
        limit = self.trainer.args.vllm_sync_check_limit or (1e-3 if exact else 0.2)
        if not difference <= limit:
            raise EngineFailure(
                f"The sampler's log-probs differ by {difference:.3g} on average from the trainer's, and at most {limit:g} "
                "was expected (vllm_sync_check_limit): the engine does not compute with the weights that it was given."
            )
        seam.log_figures(self.trainer, {"sampling/sync_difference": difference})

    @torch.no_grad()
    def refuse_stale(self) -> None:
        """Raise an `EngineFailure` on all ranks if weights have changed since the last sync, or if
        a tensor that arrived in the first sync did not arrive in this one. All ranks call it.
        """
        if not self.compares:
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        found = weights_held(self.engine)
        now = checksums(model)
        if self.engine.syncs != self._sent[0]:
            self._sent = self.engine.syncs, now
        own = [
            (n, p)
            for n, p in model.named_parameters()
            if n in found and found[n].shape == p.shape and type(p) is Parameter
        ]
        arrived = {
            n for n, p in own[:: len(own) // FEW + 1] if torch.equal(found[n], p.to(found[n]))
        }
        self._arrived = arrived if self._arrived is None else self._arrived
        if self.ranks.any(now != self._sent[1] or not self._arrived <= arrived):
            raise EngineFailure(
                "The sampler has older weights than the trainer: the last update did not reach it."
            )

    @torch.no_grad()
    def _apart(self, table: Scored) -> tuple[Tensor, Tensor]:
        """Return the sum of the differences for a few completions of this rank, and the number of
        their tokens.

        If sampling is truncated, the tenth of the tokens that differ most is left out: rounding may
        keep or remove a token at the edge of the kept set.
        """
        few = table.take(torch.arange(min(FEW, len(table))))
        model = self.trainer.model
        sampled = few.sampling_per_token_logps
        training = model.training
        assert sampled is not None
        model.eval()  # another engine has no dropout
        try:
            scored = self.scorer.score(model, replace(few, kept=None), len(few)).logps
        finally:
            model.train(training)
        difference = (scored - sampled)[few.loss_mask.bool() & ~sampled.isnan()].abs().float()
        if self.scorer.params.truncated:
            difference = difference.sort().values[: 9 * len(difference) // 10]
        return difference.sum(), difference.new_tensor(difference.numel())


def checksums(model: torch.nn.Module) -> list[int]:
    """Return the sum of the bits of each trained tensor, of a sharded one this rank's part: the
    least update changes some.
    """
    local = [getattr(p, "to_local", p.detach)() for p in model.parameters() if p.requires_grad]
    sums = [
        p.view(getattr(torch, f"int{8 * p.element_size()}")).sum(dtype=torch.int64) for p in local
    ]
    return torch.stack(sums).tolist() if sums else []
