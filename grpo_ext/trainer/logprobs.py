"""Scoring completions under the policy that sampled them.

TRL scores every pass (old, reference, loss) with `_ChunkedLogProbFunction`, which knows one temperature and no truncation.
`SamplingLogProbs` puts another function in its place for the length of a pass; the forward pass around it stays TRL's. What
the sampler kept is watched where transformers' `generate` samples, and else taken from the first pass of the same policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import trl.trainer.utils as trl_utils

from grpo_ext.objective.full_softmax import full_log_probs
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import Projection, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.watch import Recorder, watching
from grpo_ext.trainer.sampler import is_watched, resolve_for, warn_of_another_policy, warn_of_dropout
from grpo_ext.trainer.temperature import ScheduledTemperature


class SamplingLogProbs(ScheduledTemperature):
    """Mixin before `GRPOTrainer`: log-probs, entropy and KL are those of the sampling policy.

    Reads the option `logprob_policy`: "sampling"; "model", the policy without temperature and truncation; or "trl", which
    leaves scoring as it is.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._kept_rows: list[KeptSet] | None = None
        self._sampler_logps: list[torch.Tensor] | None = None
        self._scored: tuple[torch.Tensor | None, ...] = (None, None, None)
        super().__init__(*args, **kwargs)
        self.logprob_policy = getattr(self.args, "logprob_policy", "sampling")
        exact = getattr(self.args, "loss_normalization", "step") == "step"
        self.compact_head = exact and getattr(self.args, "compact_head", True)
        self.note_every = round(1 / getattr(self.args, "sampler_check_share", 0.125)) if exact else 1
        given = {"model": SamplingParams(), "trl": SamplingParams(self.temperature)}
        self.sampling = given.get(self.logprob_policy) or resolve_for(self)
        if self.logprob_policy == "model":
            warn_of_another_policy(self)
        if self.logprob_policy != "trl":
            warn_of_dropout(self)

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        self._kept_rows = self._sampler_logps = None
        watch = self.logprob_policy != "trl" and is_watched(self)
        recorder = Recorder(self.sampling, self.logprob_policy == "sampling", self.note_every) if watch else None
        with watching(self.accelerator.unwrap_model(self.model_wrapped), recorder) if watch else nullcontext():
            completion_ids, logprobs = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
        if recorder is not None:
            self._kept_rows, self._sampler_logps = recorder.rows(completion_ids)
        return completion_ids, logprobs

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self._kept_rows is not None:
            output["kept_tokens"] = self._kept_rows
        if self._sampler_logps is not None:
            logps = torch.zeros(output["completion_ids"].shape, device=output["completion_ids"].device)
            for row, values in zip(logps, self._sampler_logps, strict=True):
                row[: len(values)] = values
            output["sampler_logps"] = logps
        return output

    def _compute_loss(self, model, inputs):
        self._kept_rows = inputs.get("kept_tokens")
        loss = super()._compute_loss(model, inputs)
        if self.logprob_policy != "trl" and self.model.training:
            self._log_difference(inputs)
        return loss

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        head = self._head(attention_mask, logits_to_keep, batch_size or input_ids.size(0))
        if (
            isinstance(head, TruncatedHead)
            and head.given is None
            and getattr(model, "scored_model", model) is self.ref_model
        ):
            raise RuntimeError("The reference came to be scored before it is known which tokens the policy kept.")
        with nullcontext() if head is None else standing_in(head):
            self._scored = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
        if isinstance(head, TruncatedHead):
            self._kept_rows = head.kept_rows()
        return self._scored

    @torch.no_grad()
    def _log_difference(self, inputs: dict[str, Any]) -> None:
        """Log how far the log-probs of the sampling policy, as scored here, are from the sampler's own."""
        sampler = inputs.get("sampler_logps", inputs.get("sampling_per_token_logps"))
        if sampler is None:
            return
        scored = inputs.get("old_per_token_logps", self._scored[0].detach())
        difference = (scored - sampler)[loss_mask(inputs).bool() & ~sampler.isnan()].float()  # (tokens,)
        ratio = difference.exp()
        weights = inputs.get("importance_sampling_ratio", ratio.new_ones(1))
        parts = [difference.abs().sum(), ratio.sum(), (weights == 0).sum(), difference.numel(), weights.numel()]
        sums = self.accelerator.reduce(ratio.new_tensor(parts), reduction="sum").tolist()
        ends = [difference.abs().amax(), ratio.amax(), -ratio.amin()] if len(ratio) else [0.0, 0.0, -torch.inf]
        largest, highest, lowest = self.accelerator.gather(ratio.new_tensor(ends)).view(-1, 3).amax(0).tolist()
        num = sums[3] or float("nan")  # the step's average leaves out a micro-batch of which nothing was noted
        figures = {
            "logp_difference/mean": sums[0] / num,
            "logp_difference/max": largest,
            "ratio/mean": sums[1] / num,
            "ratio/min": -lowest,
            "ratio/max": highest,
            "ratio/share_masked": sums[2] / sums[4],
        }
        for name, value in figures.items():
            self._metrics["train"][f"sampling/{name}"].append(value)

    def _head(self, attention_mask, logits_to_keep, batch_size) -> FusedHead | TruncatedHead | None:
        """What scores instead of TRL's function; `None` where nothing is to be different."""
        if self.sampling.truncated:
            return TruncatedHead(self.sampling, attention_mask, logits_to_keep, batch_size, self._kept_rows)
        if self.sampling.temperature == self.temperature and not self.compact_head:
            return None
        return FusedHead(self.sampling.temperature, self.compact_head)


def loss_mask(inputs: dict[str, Any]) -> torch.Tensor:
    """(B, T), 1 for the tokens that a policy wrote and that count."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


@contextmanager
def standing_in(head: FusedHead | TruncatedHead) -> Iterator[None]:
    """Let `head.apply` score in place of TRL's function, and only the positions that have a label, if it is compact.

    On a GPU TRL always leaves out positions without a label. Elsewhere it scores all of them, so as not to change shapes from
    batch to batch.
    """
    original, on_gpu = trl_utils._ChunkedLogProbFunction, trl_utils._use_triton
    trl_utils._ChunkedLogProbFunction = head
    trl_utils._use_triton = lambda device: head.compact or on_gpu(device)
    head.original = original
    try:
        yield
    finally:
        trl_utils._ChunkedLogProbFunction, trl_utils._use_triton = original, on_gpu


class FusedHead:
    """Scores over the whole vocabulary: by TRL's function, at another temperature, or where that is slow by ours."""

    original: Any

    def __init__(self, temperature: float, compact: bool):
        self.temperature, self.compact = temperature, compact

    def apply(self, hidden, weight, bias, targets, temperature, chunk_size, softcap=None, scale=1.0, outputs=()):
        if not self.compact or hidden.device.type != "cpu":
            return self.original.apply(
                hidden, weight, bias, targets, self.temperature, chunk_size, softcap, scale, outputs
            )
        logps, entropy = full_log_probs(hidden, weight, bias, targets, self.temperature, Projection(scale, softcap))
        return logps, entropy if "entropy" in outputs else None, None, None, None


class TruncatedHead:
    """Scores over the kept tokens.

    Args:
        params: how the completions were sampled.
        attention_mask: (B, P + T), 1 for tokens that are scored.
        logits_to_keep: T, the completions' width.
        batch_size: rows that TRL scores at a time.
        kept_rows: what was kept, a row a completion; `None` to find it from the logits.
    """

    original: Any
    compact = True

    def __init__(self, params, attention_mask, logits_to_keep, batch_size, kept_rows=None):
        self.params, self.batch_size = params, batch_size
        self.given = kept_rows
        self.scored = attention_mask[:, -logits_to_keep:].bool()  # (B, T)
        self._next = 0
        self._rows: list[KeptSet] = []

    def apply(self, hidden, weight, bias, targets, temperature, chunk_size, softcap=None, scale=1.0, outputs=()):
        scored = self.scored[self._next : self._next + self.batch_size]  # (b, T)
        kept = self._kept(scored)
        self._next += scored.size(0)
        if hidden.size(0) != int(scored.sum()):
            raise ValueError(
                f"{hidden.size(0)} positions came to be scored where the completions have {int(scored.sum())}. Adapters that "
                "lengthen the prompt cannot be scored exactly; set logprob_policy: trl."
            )
        logps, entropy, kept = sampling_log_probs(
            hidden, weight, bias, targets, self.params, kept, Projection(scale, softcap)
        )
        if self.given is None:
            self._split(kept, scored)
        return logps, entropy if "entropy" in outputs else None, None, None, None

    def _kept(self, scored: torch.Tensor) -> KeptSet | None:
        if self.given is None:
            return None
        rows = self.given[self._next : self._next + scored.size(0)]
        return KeptSet.cat([row.select(mask.nonzero().squeeze(-1)) for row, mask in zip(rows, scored, strict=True)])

    def _split(self, kept: KeptSet, scored: torch.Tensor) -> None:
        for part in torch.arange(len(kept)).split(scored.sum(-1).tolist()):
            self._rows.append(kept.select(part))

    def kept_rows(self) -> list[KeptSet]:
        """What the pass used, a row a completion."""
        return self._rows if self.given is None else self.given
