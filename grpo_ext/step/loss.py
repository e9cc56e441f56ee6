"""Compute a micro-batch's share of an optimizer step's loss.

    loss = policy term + beta KL + supervised term on correct completions - entropy bonus
           + MoE load-balancing loss

Each part is summed over the micro-batch and divided by counts of the whole step, over all
micro-batches and ranks. Ranks average their gradients, so each rank multiplies these shares by the
number of ranks. The shares add up to the loss of the step, however the step is cut into
micro-batches. Two parts are instead means over a micro-batch, divided by the number of
micro-batches: the MoE load-balancing loss, and an entropy bonus with an entropy mask.

The coefficient of the entropy bonus is either constant or adapted to keep the entropy near a target
(`EntropyControl`; Skywork-OR1, arXiv 2505.22312). An adaptive coefficient rises while the entropy
is at or below the target. While the entropy is above the target, the coefficient falls, and there
is no bonus.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_ext.objective.kl import kl_per_token
from grpo_ext.objective.policy import (
    Loss,
    LossInputs,
    LossOptions,
    Stat,
    StepCounts,
    aggregate,
    importance_ratio,
)
from grpo_ext.objective.positive_nll import positive_nll_share, positive_nll_terms
from grpo_ext.step.records import LossOutput, MicroBatch, Scored, Scores

#: Metric: the share of the gradient with respect to the log-probs that comes from the policy and
#: supervised terms; the rest comes from the KL.
POLICY_SHARE = "kl/policy_share"


@dataclass(frozen=True)
class LossSettings:
    """Settings of the loss. A field without a comment is the training argument of that name."""

    loss: Loss  #: policy term and aggregation of `loss_type`
    options: LossOptions = field(default_factory=LossOptions)  #: constants of the policy term
    importance_sampling_level: str = "token"
    beta: float = 0.0
    kl_estimator: str = "k3"
    #: whether the KL is multiplied by the importance ratio of each token
    use_bias_correction_kl: bool = True
    positive_nll_coef: float = 0.0
    #: "all", or "useful" to divide by the counts of the groups with signal only
    advantage_normalizer: str = "all"
    max_completion_length: int = 1  #: in tokens; used only by the aggregation "constant"
    #: mean KL to the sampler above which completions with negative advantage are masked
    off_policy_mask_threshold: float | None = None
    router_aux_loss_coef: float = 0.0  #: weight of the MoE load-balancing loss
    ranks: int = 1  #: number of processes that average their gradients


def step_loss(
    scores: Scores,
    batch: MicroBatch,
    settings: LossSettings,
    entropy_coef: float | None = None,
    entropy_mask: Tensor | None = None,
    accumulation: int = 1,
) -> LossOutput:
    """Compute one micro-batch's share of the step's loss, and the metrics to log for it.

    Args:
        scores: the policy's log-probs and entropies (B, T), with gradient. The entropies are
            required for an entropy bonus.
        batch: the completions and the counts of the step. Reference log-probs are required if
            `beta` is not 0, and `right` if `positive_nll_coef` is not 0.
        settings: the settings of the loss.
        entropy_coef: the weight of the entropy bonus; `None` for no bonus.
        entropy_mask: (B, T), 1 for the tokens with high entropy, to which the policy term and the
            entropy bonus are limited; `None` to use all tokens.
        accumulation: the number of micro-batches in the step, for terms that are means over a
            micro-batch.

    Returns:
        The share of the loss and the metrics: those of the loss type, `entropy`, `entropy/high`,
        `positive_nll`, `kl`, `kl/policy_share`, `policy_loss` and `aux_loss`. A metric is left out
        if it was not computed.
    """
    rows = batch.rows
    mask = batch.rows.loss_mask  # (B, T)
    logps = scores.logps  # (B, T)
    old = old_logps(rows, scores.logps)  # (B, T)
    level = settings.importance_sampling_level
    inputs = LossInputs(
        logps=logps,
        old_logps=old,
        ratio=importance_ratio(logps, old, mask, level),
        advantages=rows.row_advantages,
        mask=mask,
        options=settings.options,
        sampler_ratio=rows.importance_sampling_ratio,
        level=level,
    )
    counts = batch.counts
    if settings.advantage_normalizer == "useful":
        counts = batch.useful
    stats = _entropy_stats(scores, mask, entropy_mask)
    stats |= settings.loss.stats(inputs)
    per_token = _policy_term(inputs, rows, settings, entropy_mask)  # (B, T)
    policy = loss = _share(per_token, mask, counts, settings)
    if settings.positive_nll_coef:
        assert rows.right is not None, "the completions were not judged"
        nll = positive_nll_terms(logps, rows.right)  # (B, T)
        share = settings.ranks * positive_nll_share(nll, mask, batch.counts.right_tokens)
        loss = loss + settings.positive_nll_coef * share
        stats["positive_nll"] = Stat((nll * mask).sum(), rows.right_mask.sum())
    from_rewards = loss
    if settings.beta:
        assert rows.ref_per_token_logps is not None, "the reference was not scored"
        correction = None
        if settings.use_bias_correction_kl:
            correction = _kl_correction(inputs)
        kl = kl_per_token(
            logps,
            ref_logps=rows.ref_per_token_logps,
            estimator=settings.kl_estimator,
            ratio=correction,
        )  # (B, T)
        penalty = settings.beta * _share(kl, mask, batch.counts, settings)
        loss = loss + penalty
        stats["kl"] = Stat((kl * mask).sum(), mask.sum())
        if logps.requires_grad:
            stats[POLICY_SHARE] = _policy_share(from_rewards, penalty, logps)
    if entropy_coef is not None:
        bonus = _entropy_bonus(
            scores,
            mask,
            entropy_mask,
            batch.counts,
            accumulation,
            settings.ranks,
        )
        loss = loss - entropy_coef * bonus
        stats["policy_loss"] = Stat(policy / settings.ranks, 1.0, "sum")
    if scores.aux_loss is not None:
        loss = loss + settings.router_aux_loss_coef * scores.aux_loss / accumulation
        stats["aux_loss"] = Stat(scores.aux_loss)
    return LossOutput(loss, stats)


def old_logps(rows: Scored, logps: Tensor) -> Tensor:
    """Return the old log-probs (B, T); where they are missing or NaN, use `logps`, detached."""
    return _where_known(rows.old_per_token_logps, logps.detach())


def _where_known(logps: Tensor | None, otherwise: Tensor) -> Tensor:
    """Return `logps` (B, T) with NaN replaced by `otherwise`; for `None`, return `otherwise`."""
    if logps is None:
        return otherwise
    return torch.where(logps.isnan(), otherwise, logps)


def _share(per_token: Tensor, mask: Tensor, counts: StepCounts, settings: LossSettings) -> Tensor:
    share = aggregate(
        per_token,
        mask,
        settings.loss.aggregation,
        counts,
        settings.max_completion_length,
    )
    return settings.ranks * share


def _kl_correction(inputs: LossInputs) -> Tensor:
    """Return the importance weight (B, T), with gradient, that corrects the KL of sampled tokens.

    It is the ratio of the policy to the sampler: p / p_old of each token (even where the policy
    term uses the ratio of the sequence), times p_old / p_sampler if another engine sampled.
    """
    ratio = importance_ratio(inputs.logps, inputs.old_logps, inputs.mask, "token")
    if inputs.sampler_ratio is not None:
        ratio = ratio * inputs.sampler_ratio
    return ratio


def _policy_share(policy: Tensor, penalty: Tensor, logps: Tensor) -> Stat:
    """Return the share of the log-prob gradient that comes from the rewards, not from the KL.

    Each part is measured by the L1 norm of its gradient with respect to `logps` (B, T), so no
    backward pass through the model is needed.

    Args:
        policy: the policy term plus the supervised term on correct completions.
        penalty: the KL term, multiplied by beta.
        logps: (B, T), the log-probs that both depend on.
    """
    policy_size = _gradient_size(policy, logps)
    penalty_size = _gradient_size(penalty, logps)
    return Stat(policy_size, weight=policy_size + penalty_size)


def _gradient_size(loss: Tensor, logps: Tensor) -> Tensor:
    """Return the L1 norm of the gradient of `loss` with respect to `logps`.

    The result is 0 if `loss` does not depend on `logps`.
    """
    if not loss.requires_grad:
        return torch.zeros_like(loss)
    [gradient] = torch.autograd.grad(
        loss,
        logps,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return gradient.abs().sum()


def _policy_term(
    inputs: LossInputs,
    rows: Scored,
    settings: LossSettings,
    entropy_mask: Tensor | None,
) -> Tensor:
    """Return the policy term (B, T), multiplied by any off-policy mask and entropy mask.

    It is also multiplied by the sampler ratio, if there is one, unless the loss type corrects for
    the sampler itself.
    """
    term = settings.loss.term(inputs)
    if settings.off_policy_mask_threshold is not None:
        term = term * _near_the_sampler(inputs, rows, settings.off_policy_mask_threshold)
    if entropy_mask is not None:
        term = term * entropy_mask
    if inputs.sampler_ratio is None or settings.loss.corrects_sampler:
        return term
    return term * inputs.sampler_ratio


def _near_the_sampler(inputs: LossInputs, rows: Scored, threshold: float) -> Tensor:
    """Return a mask that drops negative advantages if the policy is far from the sampler.

    The mask is 0 where the advantage is negative and the mean of log(p_sampler / p) over the
    completion is above `threshold`, and 1 elsewhere. It has the shape of the advantages, (B, 1) or
    (B, T). For tokens without a log-prob from the sampler, p_sampler is the old policy's
    probability. This is the off-policy sequence masking of DeepSeek-V3.2 (arXiv 2512.02556).
    """
    mask = inputs.mask  # (B, T)
    sampled = _where_known(rows.sampling_per_token_logps, inputs.old_logps)  # (B, T)
    log_ratio = sampled - inputs.logps.detach()  # (B, T)
    total = (log_ratio * mask).sum(1, keepdim=True)  # (B, 1)
    lengths = mask.sum(1, keepdim=True).clamp(min=1.0)  # (B, 1)
    kl = total / lengths  # (B, 1)
    is_near = (inputs.advantages >= 0) | (kl <= threshold)
    return is_near.to(kl.dtype)


def _entropy_bonus(
    scores: Scores,
    mask: Tensor,
    entropy_mask: Tensor | None,
    counts: StepCounts,
    accumulation: int,
    ranks: int,
) -> Tensor:
    """Return this micro-batch's share of the mean entropy of the step's tokens.

    With an entropy mask, return instead the mean over the micro-batch's tokens in the mask, divided
    by `accumulation`, as in TRL. The number of such tokens in the whole step is not known until the
    last micro-batch has been scored.
    """
    assert scores.entropies is not None
    if entropy_mask is None:
        total = (scores.entropies * mask).sum()
        return ranks * total / max(counts.tokens, 1.0)
    active = mask * entropy_mask  # (B, T)
    total = (scores.entropies * active).sum()
    mean = total / active.sum().clamp(min=1.0)
    return mean / accumulation


def _entropy_stats(scores: Scores, mask: Tensor, entropy_mask: Tensor | None) -> dict[str, Stat]:
    if scores.entropies is None:
        return {}
    entropies = scores.entropies.detach()  # (B, T)
    total = (entropies * mask).sum()
    stats = {"entropy": Stat(total, mask.sum())}
    if entropy_mask is not None:
        active = mask * entropy_mask  # (B, T)
        active_total = (entropies * active).sum()
        stats["entropy/high"] = Stat(active_total, active.sum())
    return stats


@dataclass(frozen=True)
class EntropyControl:
    """The settings and the update rule for the coefficient of the entropy bonus.

    The coefficient itself is stored in the trainer's `entropy_coef`, as in TRL.
    """

    enabled: bool  # whether the run has a bonus; fixed at its start, as in TRL
    adaptive: bool = False
    target: float = 0.0  # entropy per token, in nats
    delta: float = 0.0  # the change per optimizer step
    lowest: float = 0.0
    highest: float = 0.0

    def weight(self, coef: float, last_entropy: float) -> float | None:
        """Return the weight of the bonus in the next step, or `None` if the run has no bonus.

        An adaptive bonus has weight 0 while the entropy is above the target.

        Args:
            coef: the current coefficient.
            last_entropy: the mean entropy of the last step's tokens over all ranks; infinite before
                the first step.
        """
        if not self.enabled:
            return None
        if self.adaptive and last_entropy > self.target:
            return 0.0
        return coef

    def coef_after(self, coef: float, entropy: float) -> float:
        """Return the coefficient after a step with mean entropy `entropy`.

        An adaptive coefficient rises by `delta` if `entropy` is at or below the target, and falls
        by `delta` otherwise, but stays between `lowest` and `highest`. A constant coefficient is
        returned unchanged.
        """
        if not self.adaptive:
            return coef
        change = self.delta if entropy <= self.target else -self.delta
        moved = coef + change
        return min(max(moved, self.lowest), self.highest)
