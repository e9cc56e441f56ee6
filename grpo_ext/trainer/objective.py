"""The loss of an optimizer step does not depend on how the step is cut into micro-batches, generations and ranks.

TRL divides each micro-batch's loss by that micro-batch's counts. `ExactObjective` prepares all micro-batches of a step at its
start (the policy does not change within a step, so what is sampled is the same), counts over all of them and all ranks, and
replaces TRL's divisor by the step's. The rest of TRL's loss stays TRL's.
"""

from __future__ import annotations

from typing import Any

import torch

from grpo_ext.batching.rows import is_table
from grpo_ext.objective.aggregate import StepCounts, aggregate, denominator
from grpo_ext.objective.kl import kl_per_token
from grpo_ext.objective.policy import LossInputs, LossOptions, get_loss, importance_ratio
from grpo_ext.trainer.logprobs import loss_mask
from grpo_ext.trainer.micro_batches import CutMicroBatches, arrange, check_cuts
from grpo_ext.trainer.rows import CountedRows, overridden
from grpo_ext.trainer.step_metrics import StepMetrics

OPTIONS = {
    "loss_normalization": "step",
    "std_estimator": "sample",
    "advantage_normalizer": "all",
    "kl_estimator": "k3",
}
TRL_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


class ExactObjective(CutMicroBatches, CountedRows):
    """Mixin before `GRPOTrainer`.

    Reads the options `loss_normalization`, `std_estimator`, `advantage_normalizer`, `kl_estimator` and `logprob_policy`.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._entropy_mask: torch.Tensor | None = None
        self._step_metrics = StepMetrics()
        super().__init__(*args, **kwargs)
        for name, default in OPTIONS.items():
            setattr(self, name, getattr(self.args, name, default))
        check_options(self)
        check_cuts(self)
        self._loss = get_loss(self.loss_type)
        align_reference(self)

    def _prepare_inputs(self, generation_batch):
        if not self.model.training or self.loss_normalization == "micro_batch":
            return super()._prepare_inputs(generation_batch)
        self._make_ready(generation_batch)
        return self._prepared.pop(0)

    def _make_ready(self, generation_batch: Any) -> None:
        """At the start of an optimizer step, all its micro-batches."""
        if not self._prepared:
            self._prepared = self._prepare_step(self._step_batches or [generation_batch])

    def _prepare_step(self, batches: list[Any]) -> list[dict[str, Any]]:
        """All micro-batches of an optimizer step, each with the step's counts."""
        first, slices = self._step, []
        try:
            for offset, batch in enumerate(batches):
                self._step = first + offset
                slices.append(dict(super()._prepare_inputs(batch)))
        finally:
            self._step = first
        counts = sum(local_counts(part) for part in slices)  # (5,)
        *counts, others = self.accelerator.reduce(counts, reduction="sum").tolist()
        if others and self.max_tokens:
            raise ValueError("max_tokens_per_micro_batch does not go with images. Take it out.")
        slices = slices if others else self._arranged(slices)
        for part in slices:
            part["step_counts"] = {"all": StepCounts(*counts[:2]), "useful": StepCounts(*counts[2:])}
        return slices

    def _arranged(self, slices: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The step's micro-batches with less padding and without rows that cannot change the gradient; as many as before."""
        if self.by_batch or not self.may_cut:
            return slices
        return arrange(slices, self._can_matter, self.accelerator, self.max_tokens)

    @property
    def by_batch(self) -> bool:
        """Whether it matters which rows a micro-batch holds: entropy quantiles and the balance of experts are taken over it."""
        return self.top_entropy_quantile < 1.0 or self.aux_loss_enabled

    @property
    def skips_dead_rows(self) -> bool:
        """Whether completions with advantage 0 are left out: every loss of TRL's is a multiple of the advantage."""
        others = self.beta != 0.0 or self._entropy_bonus_enabled or self.loss_type not in TRL_LOSSES
        return getattr(self.args, "skip_dead_rows", True) and not others

    def _can_matter(self, table: dict[str, Any]) -> torch.Tensor:
        """(B,), bool, rows that can change the gradient."""
        matter = loss_mask(table).sum(1) > 0
        if self.skips_dead_rows:
            advantages = table["advantages"]
            matter &= (advantages if advantages.dim() == 1 else advantages.abs().sum(1)) != 0
        return matter

    def _compute_loss(self, model, inputs):
        if "step_counts" not in inputs:
            return super()._compute_loss(model, inputs)
        own_term = self.loss_type not in TRL_LOSSES
        own_kl = self.beta != 0.0 and (own_term or self.kl_estimator != "k3" or self.advantage_normalizer == "useful")
        coef, beta = self._entropy_coef_now(), self.beta
        # a registered loss takes TRL's bookkeeping from dapo, whose metrics are those of the clipped ratio
        with overridden(self, loss_type="dapo" if own_term else self.loss_type, beta=0.0 if own_kl else beta):
            with self._step_metrics.noting(self, inputs):
                total = super()._compute_loss(model, inputs)
            divisor = trl_divisor(self, inputs)
        logps, entropies, aux_loss = self._scored
        mask, ranks = loss_mask(inputs), self.accelerator.num_processes
        counts = inputs["step_counts"][self.advantage_normalizer]

        bonus, step_bonus = self._entropy_bonus(entropies, mask, coef, inputs["step_counts"]["all"].tokens)
        aux = 0.0
        if self.aux_loss_enabled:
            aux = self.router_aux_loss_coef * aux_loss / self.current_gradient_accumulation_steps
        policy = total + bonus - aux
        if own_term:
            policy = ranks * self._aggregate(self._policy_term(inputs, logps, mask), mask, counts)
        else:
            policy = policy * (
                ranks * divisor / denominator(self._loss.aggregation, counts, self.max_completion_length)
            )
        if own_kl:
            with self._step_metrics.noting(self, inputs):
                kl = self._kl(inputs, logps, mask)
            policy = policy + beta * ranks * self._aggregate(kl, mask, inputs["step_counts"]["all"])
        if not self._prepared:  # the step's last micro-batch
            self._step_metrics.settle(self)
        return policy - step_bonus + aux

    def _aggregate(self, per_token: torch.Tensor, mask: torch.Tensor, counts: StepCounts) -> torch.Tensor:
        return aggregate(per_token, mask, self._loss.aggregation, counts, self.max_completion_length)

    def _policy_term(self, inputs: dict[str, Any], logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """A registered loss, with TRL's masks and sampler correction."""
        old = inputs.get("old_per_token_logps", logps.detach())
        advantages = inputs["advantages"]
        advantages = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
        ratio = importance_ratio(logps, old, mask, self.importance_sampling_level)
        sampler_ratio = inputs.get("importance_sampling_ratio")
        options = LossOptions(self.epsilon_low, self.epsilon_high, self.args.delta)
        term = self._loss.term(LossInputs(logps, old, ratio, advantages, mask, options, sampler_ratio))
        if self.off_policy_mask_threshold is not None:
            sampler = inputs.get("sampling_per_token_logps", old)
            term = term * self.get_off_policy_mask(advantages, logps, sampler, mask, self.off_policy_mask_threshold)
        if self.top_entropy_quantile < 1.0:
            term = term * self._entropy_mask
        return term if sampler_ratio is None else term * sampler_ratio

    def _kl(self, inputs: dict[str, Any], logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ratio = None
        if self.args.use_bias_correction_kl:
            old = inputs.get("old_per_token_logps", logps.detach())
            ratio = importance_ratio(logps, old, mask, self.importance_sampling_level)
        kl = kl_per_token(logps, inputs["ref_per_token_logps"], self.kl_estimator, ratio)
        sums = self.accelerator.reduce(torch.stack([(kl.detach() * mask).sum(), mask.sum().float()]), reduction="sum")
        self._metrics["train"]["kl"].append((sums[0] / sums[1].clamp(min=1.0)).item())
        return kl

    def get_high_entropy_mask(self, entropies, mask, threshold):
        self._entropy_mask = super().get_high_entropy_mask(entropies, mask, threshold)
        return self._entropy_mask

    def _entropy_coef_now(self) -> float:
        """The coefficient that TRL is about to apply; its adaptive control changes it within the loss."""
        if not self._entropy_bonus_enabled:
            return 0.0
        off = self.use_adaptive_entropy and self._last_world_entropy > self.args.entropy_target
        return 0.0 if off else self.entropy_coef

    def _entropy_bonus(
        self, entropies, mask, coef: float, tokens: float
    ) -> tuple[torch.Tensor | float, torch.Tensor | float]:
        """The bonus as TRL has just subtracted it, and as the mean over the whole step's tokens."""
        if not coef:
            return 0.0, 0.0
        active = mask if self.top_entropy_quantile >= 1.0 else mask * self._entropy_mask
        total = (entropies * active).sum()
        trl = coef * total / active.sum().clamp(min=1.0) / self.current_gradient_accumulation_steps
        if self.top_entropy_quantile < 1.0:  # how many tokens of the step will be active is not known yet
            return trl, trl
        return trl, coef * self.accelerator.num_processes * total / max(tokens, 1.0)


def local_counts(inputs: dict[str, Any]) -> torch.Tensor:
    """Sequences and tokens of a micro-batch, both again for groups with signal, and 1 if it holds more than a table; (5,)."""
    tokens, counted = loss_mask(inputs).sum(-1).float(), inputs["counted"]
    signal = inputs.get("signal", torch.ones_like(counted))
    other = counted.new_tensor(float(not is_table(inputs)))
    return torch.stack([counted.sum(), tokens.sum(), (counted * signal).sum(), (tokens * signal).sum(), other])


def trl_divisor(trainer: Any, inputs: dict[str, Any]) -> torch.Tensor | float:
    """What TRL divides a micro-batch's sum by."""
    steps, rows = trainer.current_gradient_accumulation_steps, inputs["completion_mask"].size(0)
    if trainer.loss_type in ("cispo", "dapo", "vespo"):
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return tokens * steps / trainer.args.steps_per_generation
    if trainer.loss_type == "bnpo":
        return loss_mask(inputs).sum().clamp(min=1.0) * steps
    return rows * steps * (trainer.max_completion_length if trainer.loss_type == "dr_grpo" else 1)


def check_options(trainer: Any) -> None:
    """Refuse options that do not go together.

    Raises:
        ValueError: naming them and what to write instead.
    """
    own = [
        f"{name}: {getattr(trainer, name)}"
        for name in ("advantage_normalizer", "kl_estimator")
        if getattr(trainer, name) != OPTIONS[name]
    ]
    own += [f"loss_type: {trainer.loss_type}"] if trainer.loss_type not in TRL_LOSSES else []
    if own and trainer.loss_normalization == "micro_batch":
        raise ValueError(f"{own[0]} needs loss_normalization: step.")
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        for name in ("advantage_normalizer", "std_estimator"):
            if getattr(trainer, name) != OPTIONS[name]:
                raise ValueError(
                    f"{name}: {getattr(trainer, name)} needs multi_objective_aggregation: sum_then_normalize, where a "
                    "completion has one reward."
                )


def align_reference(trainer: Any) -> None:
    """Give the reference the weights of the policy that was passed in.

    TRL loads the reference from the policy's path, which is another model if the policy was changed in memory.
    """
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if trainer.ref_model is None or sharded or getattr(trainer.model, "is_quantized", False):
        return
    unwrap = trainer.accelerator.unwrap_model
    reference, policy = unwrap(trainer.ref_model), unwrap(trainer.model)
    reference.load_state_dict(policy.state_dict())
