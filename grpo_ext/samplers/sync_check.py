"""Check that a separate sampler has the trainer's weights, by checksums and by log-probs.

If a tensor, such as a tied output head that the engine copies, did not arrive, greedy completions
hardly change, but log-probs change at once. After an update at a learning rate of 1e-6, however,
the change is smaller than the rounding errors of bfloat16. In that case, checksums show whether the
weights were sent, and a few tensors of a colocated engine show whether they arrived.
"""

import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_ext.samplers.base import PROBE_ROWS, Sampler
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.step.records import Ranks, Scored
from grpo_ext.vllm import EngineFailure


class SyncCheck:
    """Compares log-probs after the first weight sync, and then every `vllm_sync_check_steps` syncs.

    Nothing is checked if `vllm_sync_check_steps` is 0, or if completions may be scored under a
    different policy than the one that sampled them.

    Args:
        trainer: the trainer whose weights the sampler should have.
        sampler: the sampler to check; it must have the ability `reports_weights`.
        scorer: computes the trainer's log-probs.
        ranks: the ranks that are checked together.
    """

    def __init__(
        self,
        trainer: SampledTrainer,
        sampler: Sampler,
        scorer: Scorer,
        ranks: Ranks,
    ):
        args = trainer.args
        self.trainer = trainer
        self.scorer = scorer
        self.ranks = ranks
        self.every = args.vllm_sync_check_steps
        self.sampler = sampler
        # `generation_kwargs` may also truncate
        truncated = args.top_k or args.top_p < 1 or args.min_p or args.generation_kwargs
        same_policy = args.logprob_policy == "sampling" or not truncated
        if args.logprob_policy == "model" and args.temperature != 1.0:
            same_policy = False
        self.compares = bool(self.every) and same_policy
        self._checked: int | None = None  # the number of the sync that was checked last
        # the last sync seen, and the checksums of the weights at that time
        self._sent: tuple[int, list[int]] = (-1, [])
        # names of the engine's tensors that equaled the trainer's after the first sync
        self._arrived: set[str] | None = None

    @property
    def due(self) -> bool:
        """Whether a comparison is due for the next completions."""
        return self.compares and (
            self._checked is None or self.sampler.syncs - self._checked >= self.every
        )

    def check(self, table: Scored) -> None:
        """Check that the weights arrived; if a comparison is due, also check the log-probs.

        The comparison uses the first `PROBE_ROWS` completions of each rank, and logs the mean
        absolute difference as `sampling/sync_difference`. If the sampler returns kept tokens, the
        share of sampled tokens that top-k, top-p or min-p would have removed with the trainer's
        logits is also logged, as `sampling/edge_tokens`.

        All ranks must call this method. Nothing is compared if any rank's table has images or lacks
        the sampler's log-probs, or if the completions to compare have no tokens in the loss.

        Args:
            table: the completions that the engine has just sampled, without carried-over groups,
                whose log-probs come from older weights.

        Raises:
            EngineFailure: on all ranks, if the last update did not reach the sampler, or if the
                mean difference is NaN or exceeds `vllm_sync_check_limit` (by default, 1e-3 if both
                sides compute in float32, otherwise 0.2).
        """
        self.refuse_stale()
        lacks_logps = bool(table.model_inputs) or table.sampling_per_token_logps is None
        if not self.due or self.ranks.any(lacks_logps):
            return
        table = table.take(torch.arange(min(PROBE_ROWS, len(table))))
        differences, edges = self._compared(table)
        count = differences.new_tensor(differences.numel())
        sums = torch.stack([differences.sum(), count, edges])
        total, num_tokens, num_edges = self.ranks.total(sums).tolist()
        if num_tokens == 0:  # all completions are truncated and masked
            return
        self._checked = self.sampler.syncs
        difference = total / num_tokens
        limit = self._limit()
        if not difference <= limit:
            raise EngineFailure(
                f"The sampler's log-probs differ by {difference:.3g} on average from the "
                f"trainer's, but may differ by at most {limit:g}. The engine is probably not using "
                "the weights that it was sent: restart it, and resume from the checkpoint. If it "
                "only rounds differently, raise vllm_sync_check_limit."
            )
        figures = {"sampling/sync_difference": difference}
        if self._has_kept(table):
            figures["sampling/edge_tokens"] = num_edges / num_tokens
        seam.log_figures(self.trainer, figures)

    def _limit(self) -> float:
        limit = self.trainer.args.vllm_sync_check_limit
        if limit:
            return limit
        weights = self.trainer.model.parameters()
        has_half_weights = any(parameter.dtype.itemsize < 4 for parameter in weights)
        in_float32 = self.trainer.accelerator.mixed_precision == "no" and not has_half_weights
        return 1e-3 if in_float32 and self.sampler.dtype() == "float32" else 0.2

    def _has_kept(self, table: Scored) -> bool:
        """Return whether sampling is truncated and the table contains the kept tokens."""
        return self.scorer.params.truncated and table.kept is not None

    @torch.no_grad()
    def refuse_stale(self) -> None:
        """Raise `EngineFailure` on all ranks if the sampler's weights are older than the trainer's.

        This is the case if the trainer's weights have changed since the last sync, or if one of a
        few engine tensors that equaled the trainer's after the first sync now differs. Nothing is
        checked if this run does not compare log-probs. All ranks must call this method.
        """
        if not self.compares:
            return
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        engine_weights = self.sampler.readable_weights()
        current = checksums(model)
        if self.sampler.syncs != self._sent[0]:
            self._sent = (self.sampler.syncs, current)
        comparable = []
        for name, parameter in model.named_parameters():
            held = engine_weights.get(name)
            if held is not None and held.shape == parameter.shape and type(parameter) is Parameter:
                comparable.append((name, parameter, held))
        arrived = set()
        for name, parameter, held in comparable[:: len(comparable) // PROBE_ROWS + 1]:
            if torch.equal(held, parameter.to(held)):
                arrived.add(name)
        if self._arrived is None:
            self._arrived = arrived
        if self.ranks.any(current != self._sent[1] or not self._arrived <= arrived):
            raise EngineFailure(
                "The sampler has older weights than the trainer, because the last update did not "
                "reach it. Restart the vLLM server, if there is one. Then run the command again "
                "with `--resume auto`, or `train(resume_from_checkpoint=True)` in a script, to "
                "continue from the newest checkpoint."
            )

    @torch.no_grad()
    def _compared(self, table: Scored) -> tuple[Tensor, Tensor]:
        """Compare the trainer's log-probs of this rank's completions with the sampler's.

        If sampling is truncated and the kept tokens are unknown, the 10% of tokens that differ most
        are left out, because rounding may keep or remove a token at the edge of the kept set.

        Returns:
            The absolute differences (N,) at the N compared tokens, and the number of sampled tokens
            that top-k, top-p or min-p would have removed with the trainer's logits (0 if the kept
            tokens are unknown).
        """
        sampled = table.sampling_per_token_logps  # (B, T)
        assert sampled is not None
        truncated = self.scorer.params.truncated
        has_kept = self._has_kept(table)
        mask = table.loss_mask.bool() & ~sampled.isnan()
        edges = sampled.new_zeros(())
        model = self.trainer.model
        was_training = model.training
        model.eval()  # another engine has no dropout
        try:
            scored = self.scorer.score(model, table, len(table)).logps
            if has_kept:
                edges = self.scorer.edge_tokens(model, table)[mask].sum()
        finally:
            model.train(was_training)
        differences = (scored - sampled)[mask].abs().float()  # (tokens,)
        if truncated and not has_kept:
            differences = differences.sort().values[: 9 * len(differences) // 10]
        return differences, edges


def checksums(model: torch.nn.Module) -> list[int]:
    """Return a checksum of each trainable parameter.

    A checksum is the sum of a parameter's values, with the bits of each value read as an integer.
    Even after a tiny update, it is very unlikely that all sums stay the same. For a sharded
    parameter, only this rank's shard is summed.
    """
    sums = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        local = getattr(parameter, "to_local", parameter.detach)()
        bits = local.view(getattr(torch, f"int{8 * local.element_size()}"))
        sums.append(bits.sum(dtype=torch.int64))
    return torch.stack(sums).tolist() if sums else []
