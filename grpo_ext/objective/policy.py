"""The policy term of each loss, and how per-token losses are aggregated into one number.

Symbols: w is the importance ratio of a token, p / p_old, or, with `importance_sampling_level:
sequence`, the geometric mean of the ratios in its sequence; A is the advantage; sg() stops the
gradient. A loss consists of a policy term, which is the loss of one token, and an aggregation.
`@register_loss` registers a new loss.

An optimizer step is split into micro-batches and across ranks. Its loss is

    loss = sum over the step's tokens of weight(token) loss(token),

so each micro-batch contributes the sum over its own tokens, and these sums add up to the same loss
regardless of how the step is split.

=============  =====================================  ==============================================
aggregation    weight(token)                          its size, with n tokens in the completion
=============  =====================================  ==============================================
sequence_mean  1 / (sequences n)                      lower in longer completions
token_mean     1 / tokens                             equal, but lower in steps with more tokens
sequence_sum   1 / sequences                          equal, and independent of all lengths
constant       1 / (sequences max_completion_length)  sequence_sum times a constant
=============  =====================================  ==============================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes need only the names of the losses, without importing torch
    from torch import Tensor

AGGREGATIONS = ("sequence_mean", "token_mean", "sequence_sum", "constant")


@dataclass(frozen=True)
class StepCounts:
    """The counts of an optimizer step, over all its micro-batches and ranks."""

    sequences: float  #: completions in the loss; empty ones count, those left out do not
    tokens: float  #: completion tokens in the loss
    right_tokens: float = 0.0  #: tokens in the loss that belong to correct completions


@dataclass(frozen=True)
class Stat:
    """A metric of one micro-batch, to be merged over micro-batches and ranks."""

    #: the micro-batch's sum if `kind` is "mean" or "sum", else its minimum or maximum
    value: Tensor | float
    weight: Tensor | float = 1.0  #: the divisor of a mean; 0 excludes the value
    kind: str = "mean"  #: "mean", "sum", "min" or "max"


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    aggregation: str,
    counts: StepCounts,
    max_completion_length: int,
) -> Tensor:
    """Return one micro-batch's share of the step's loss.

    Args:
        per_token: (B, T), the loss of each token, or (B, 1) for one value per sequence.
        mask: (B, T), 1 for counted tokens.
        aggregation: one of `AGGREGATIONS`.
        counts: the counts of the whole optimizer step.
        max_completion_length: the limit in tokens; used only by "constant".

    Returns:
        A scalar. Summed over the micro-batches and ranks of a step, it is the loss of the step (0
        for a step without tokens).
    """
    sums = (per_token * mask).sum(-1)  # (B,)
    if aggregation == "sequence_mean":
        sums = sums / mask.sum(-1).clamp(min=1.0)
    total = counts.tokens if aggregation == "token_mean" else counts.sequences
    divisor = max(total, 1.0)
    if aggregation == "constant":
        divisor = divisor * max_completion_length
    return sums.sum() / divisor


@dataclass(frozen=True)
class LossOptions:
    """Constants of the losses, named like the training arguments (`epsilon_low` is `epsilon`)."""

    epsilon_low: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    dppo_delta: float = 0.15
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0


@dataclass(frozen=True)
class LossInputs:
    """The inputs of a policy term."""

    logps: Tensor  #: (B, T), with gradient
    old_logps: Tensor  #: (B, T), under the old policy, for the denominator of the ratios
    ratio: Tensor  #: w, (B, T), with gradient; if `level` is "sequence", equal within a sequence
    advantages: Tensor  #: (B, 1) or (B, T)
    mask: Tensor  #: (B, T), 1 for counted tokens
    options: LossOptions
    #: (B, T) or (B, 1), the trainer's p_old divided by the sampler's; `None` if the gradient is not
    #: corrected for a separate sampler
    sampler_ratio: Tensor | None = None
    #: "token" or "sequence": whether ratios and clip metrics are per token or per sequence
    level: str = "token"


PolicyTerm = Callable[[LossInputs], "Tensor"]
LossStats = Callable[[LossInputs], dict[str, Stat]]


@dataclass(frozen=True)
class Loss:
    """A registered loss: a policy term with its aggregation and metrics."""

    name: str  #: the value of `loss_type`
    term: PolicyTerm  #: maps `LossInputs` to (B, T)
    aggregation: str  #: one of `AGGREGATIONS`
    stats: LossStats  #: maps `LossInputs` to the metrics that the loss logs
    #: whether the term is 0 where the advantage is 0, so that such completions can be skipped
    needs_advantage: bool = False
    corrects_sampler: bool = False  #: whether the term itself uses the sampler's ratio


_LOSSES: dict[str, Loss] = {}


def clip_stats(x: LossInputs) -> dict[str, Stat]:
    """Return the metrics `clip_ratio/*`, the shares of tokens or sequences that are clipped.

    A token is clipped if its ratio is below the clip range and its advantage is negative
    (`low_mean`), or if its ratio is above the range and its advantage is positive (`high_mean`).
    `region_mean` counts both. At the sequence level, each sequence counts once, as in TRL.
    `low_min` is the smallest share of a sequence's tokens that are clipped below the range, and
    `high_max` the largest share clipped above it. Sequences without tokens do not count.
    """
    is_below = x.ratio < 1 - x.options.epsilon_low
    is_above = x.ratio > 1 + x.options.epsilon_high
    low = is_below & (x.advantages < 0)  # (B, T)
    high = is_above & (x.advantages > 0)  # (B, T)
    stats = {
        "clip_ratio/low_mean": mean_stat(low, x.mask, x.level),
        "clip_ratio/high_mean": mean_stat(high, x.mask, x.level),
        "clip_ratio/region_mean": mean_stat(low | high, x.mask, x.level),
        "clip_ratio/low_min": Stat(0.0, 0.0, "min"),
        "clip_ratio/high_max": Stat(0.0, 0.0, "max"),
    }
    lengths = x.mask.sum(-1)  # (B,)
    has_tokens = lengths > 0  # (B,)
    if has_tokens.any():
        low_shares = (low * x.mask).sum(-1) / lengths  # (B,)
        high_shares = (high * x.mask).sum(-1) / lengths  # (B,)
        stats["clip_ratio/low_min"] = Stat(low_shares[has_tokens].amin(), kind="min")
        stats["clip_ratio/high_max"] = Stat(high_shares[has_tokens].amax(), kind="max")
    return stats


def mean_stat(values: Tensor, mask: Tensor, level: str = "token") -> Stat:
    """Return a `Stat` with the mean of `values` over tokens, or over sequences that have tokens.

    Args:
        values: (B, T), or (B, 1) for one value per sequence.
        mask: (B, T), 1 for counted tokens.
        level: "token" gives each token the same weight, "sequence" each sequence.
    """
    lengths = mask.sum(-1)  # (B,)
    sums = (values * mask).sum(-1)  # (B,)
    if level == "token":
        return Stat(sums.sum(), lengths.sum())
    means = sums / lengths.clamp(min=1)  # (B,)
    num_sequences = (lengths > 0).sum()
    return Stat(means.sum(), num_sequences)


def register_loss(
    name: str,
    *,
    aggregation: str,
    stats: LossStats = clip_stats,
    needs_advantage: bool = False,
    corrects_sampler: bool = False,
) -> Callable[[PolicyTerm], PolicyTerm]:
    """Decorator that registers a policy term as a value of `loss_type`.

    The decorated function maps `LossInputs` to the loss of each token, (B, T). To use the loss in a
    recipe, define it in a file listed in `reward_plugins`.

    Args:
        name: the new value of `loss_type`.
        aggregation: one of `AGGREGATIONS`.
        stats: maps `LossInputs` to the metrics that the loss logs.
        needs_advantage: whether the term is 0 where the advantage is 0, so that completions without
            an advantage can be skipped.
        corrects_sampler: whether the term itself uses the sampler's ratio, `sampler_ratio`.

    Raises:
        ValueError: if the name is taken, or if the aggregation is unknown.
    """
    if name in _LOSSES:
        raise ValueError(f"loss_type {name!r} is already registered: choose another name.")
    if aggregation not in AGGREGATIONS:
        raise ValueError(
            f"unknown aggregation {aggregation!r}. Choose one of {', '.join(AGGREGATIONS)}."
        )

    def register(term: PolicyTerm) -> PolicyTerm:
        _LOSSES[name] = Loss(
            name=name,
            term=term,
            aggregation=aggregation,
            stats=stats,
            needs_advantage=needs_advantage,
            corrects_sampler=corrects_sampler,
        )
        return term

    return register


def get_loss(name: str) -> Loss:
    """Return the loss registered as `name`; raise `ValueError` if there is none."""
    if name not in _LOSSES:
        raise ValueError(
            f"loss_type: unknown loss {name!r}. Choose one of {', '.join(_LOSSES)}, or register it "
            "with @register_loss."
        )
    return _LOSSES[name]


def loss_names() -> tuple[str, ...]:
    """Return all values of `loss_type`."""
    return tuple(_LOSSES)


def cispo_stats(x: LossInputs) -> dict[str, Stat]:
    """Return the metric `cispo_clip_ratio`, the share of tokens whose weight is capped.

    A token counts as capped if its ratio is above `epsilon_high` and its advantage is positive. At
    the sequence level, each sequence has the same weight.
    """
    is_above = x.ratio > x.options.epsilon_high
    capped = is_above & (x.advantages > 0)  # (B, T)
    return {"cispo_clip_ratio": mean_stat(capped, x.mask, x.level)}


def vespo_stats(x: LossInputs) -> dict[str, Stat]:
    """Return the metric `vespo/phi_seq_mean`, the mean of `vespo_weight` over sequences."""
    phi = vespo_weight(x)  # (B, 1) or (B, T)
    return {"vespo/phi_seq_mean": mean_stat(phi, x.mask, "sequence")}


def dppo_stats(x: LossInputs) -> dict[str, Stat]:
    """Return the metric `dppo/masked`, the share of tokens that `dppo_mask` masks."""
    masked = 1 - dppo_mask(x)  # (B, T)
    return {"dppo/masked": mean_stat(masked, x.mask)}


def ratios_move(accumulation: int, passes: int) -> bool:
    """Return whether more than one optimizer step trains on the same generation.

    If so, ratios can differ from 1, and the log-probs of the old policy are needed.

    Args:
        accumulation: the number of micro-batches in an optimizer step.
        passes: the number of micro-batches that one generation provides (steps_per_generation x
            num_iterations).
    """
    return accumulation % passes != 0


def importance_ratio(
    logps: Tensor,
    old_logps: Tensor,
    mask: Tensor,
    level: str,
) -> Tensor:
    """Return the importance ratios w, (B, T), with gradient.

    At level "sequence", w is the ratio of GSPO-token (arXiv 2507.18071, section 4.3), sg(s) p /
    sg(p), where s is the geometric mean of the sequence's ratios. All tokens of a sequence have the
    value s, but each has its own gradient, so that advantages of turns, masks and the correction
    for a separate sampler can differ between tokens. If none of these differ, the gradient of the
    sequence is that of GSPO.

    Args:
        logps: (B, T), the policy's log-probs, with gradient.
        old_logps: (B, T), the log-probs under the old policy.
        mask: (B, T), 1 for counted tokens; only level "sequence" uses it.
        level: "token" or "sequence".
    """
    log_ratio = logps - old_logps  # (B, T)
    if level == "token":
        return log_ratio.exp()
    lengths = mask.sum(-1, keepdim=True).clamp(min=1.0)  # (B, 1)
    total = (log_ratio.detach() * mask).sum(-1, keepdim=True)  # (B, 1)
    sequence_ratio = (total / lengths).exp()  # (B, 1)
    one = (logps - logps.detach()).exp()  # (B, T), p / sg(p), which has the gradient
    return sequence_ratio * one


@register_loss("luspo", aggregation="sequence_sum", needs_advantage=True)
@register_loss("dapo", aggregation="token_mean", needs_advantage=True)
@register_loss("dr_grpo", aggregation="constant", needs_advantage=True)
@register_loss("bnpo", aggregation="token_mean", needs_advantage=True)
@register_loss("grpo", aggregation="sequence_mean", needs_advantage=True)
def clipped(x: LossInputs) -> Tensor:
    """Return PPO's clipped term, -min(w A, clip(w, 1 - eps_low, 1 + eps_high) A), (B, T).

    See arXiv 1707.06347, eq. 7. If `delta` is set, it caps the first w, as in the two-sided
    clipping of INTELLECT-2 (arXiv 2505.07291). Five losses share this term:

    - `grpo`: DeepSeekMath (arXiv 2402.03300, eq. 3).
    - `dr_grpo`: arXiv 2503.20783.
    - `dapo`: arXiv 2503.14476, which uses an eps_high above eps_low.
    - `luspo`: Length-Unbiased Sequence Policy Optimization (arXiv 2602.05261), for the sequence
      level, where the sum over a completion is the term times the completion's length.
    - `bnpo`: defined by TRL without a paper; equals `dapo`, because its batch is the optimizer
      step.
    """
    o = x.options
    clipped_ratio = x.ratio.clamp(1 - o.epsilon_low, 1 + o.epsilon_high)
    ratio = x.ratio
    if o.delta is not None:
        ratio = ratio.clamp(max=o.delta)
    unclipped_gain = ratio * x.advantages  # (B, T)
    clipped_gain = clipped_ratio * x.advantages  # (B, T)
    return -unclipped_gain.minimum(clipped_gain)


@register_loss("cispo", aggregation="token_mean", stats=cispo_stats, needs_advantage=True)
def cispo(x: LossInputs) -> Tensor:
    """Return the CISPO term, -sg(min(w, eps_high)) A log p, (B, T).

    CISPO was introduced with MiniMax-M1 (arXiv 2506.13585). Every token keeps its gradient.
    `epsilon_high` is the cap, as in TRL and ScaleRL (arXiv 2510.13786); in the paper, the cap is
    1 + eps_high.
    """
    weight = x.ratio.clamp(max=x.options.epsilon_high).detach()  # (B, T)
    return -weight * x.advantages * x.logps


def _by_sign(
    positive: Tensor,
    if_positive: float,
    otherwise: float,
    x: LossInputs,
) -> Tensor:
    """Return `if_positive` where `positive` is true, else `otherwise`, as a tensor.

    Args:
        positive: a bool tensor.
        if_positive: the value where `positive` is true.
        otherwise: the value elsewhere.
        x: the inputs, whose log-probs give the dtype and the device.
    """
    import torch

    return torch.where(
        positive,
        x.logps.new_tensor(if_positive),
        x.logps.new_tensor(otherwise),
    )


@register_loss("sapo", aggregation="sequence_mean", needs_advantage=True, stats=lambda x: {})
def sapo(x: LossInputs) -> Tensor:
    """Return the SAPO term, -(4 / tau) sigmoid(tau (w - 1)) A, (B, T).

    tau is `sapo_temperature_pos` where A > 0, else `sapo_temperature_neg`. SAPO is Soft Adaptive
    Policy Optimization (arXiv 2511.20347).
    """
    o = x.options
    tau = _by_sign(x.advantages > 0, o.sapo_temperature_pos, o.sapo_temperature_neg, x)
    gate = (tau * (x.ratio - 1)).sigmoid()  # (B, T)
    return -gate * 4 / tau * x.advantages


@register_loss("dppo", aggregation="token_mean", stats=dppo_stats, needs_advantage=True)
def dppo(x: LossInputs) -> Tensor:
    """Return the DPPO term, -M w A, (B, T), where M is `dppo_mask`; ratios are not clipped.

    DPPO is Divergence Proximal Policy Optimization (arXiv 2602.04879).
    """
    return -dppo_mask(x) * x.ratio * x.advantages


def dppo_mask(x: LossInputs) -> Tensor:
    """Return a float32 mask (B, T), 0 for tokens that would move further out of the trust region.

    The mask is 1 for all other tokens. The distance is the binary total variation: a token is
    outside if abs(p - p_old) is above `dppo_delta`, and its update moves it further out if A > 0
    and w > 1, or A <= 0 and w < 1. PPO's clip uses only w, which can be far from 1 for rare tokens
    even if their probability has hardly changed.
    """
    import torch

    away = torch.where(x.advantages > 0, x.ratio > 1, x.ratio < 1)  # (B, T)
    p = x.logps.detach().exp()  # (B, T)
    old_p = x.old_logps.exp()  # (B, T)
    outside = (p - old_p).abs() > x.options.dppo_delta
    masked = away & outside
    return (~masked).float()


@register_loss(
    "vespo",
    aggregation="token_mean",
    stats=vespo_stats,
    needs_advantage=True,
    corrects_sampler=True,
)
def vespo(x: LossInputs) -> Tensor:
    """Return the VESPO term, -phi(W) A log p, (B, T), where phi(W) is `vespo_weight`.

    VESPO is Variational Sequence-Level Soft Policy Optimization (arXiv 2602.10693).
    """
    return -vespo_weight(x) * x.advantages * x.logps


def vespo_weight(x: LossInputs) -> Tensor:
    """Return phi(W) = W^k exp(lambda (1 - W)), where W is the product of the sequence's ratios.

    k and lambda depend on whether A >= 0, so the result has the shape of the advantages, (B, 1) or
    (B, T). If `sampler_ratio` is given, W includes it. log W and the logs of `sampler_ratio` are
    clamped to [log 1e-8, 20], the log ratio of each token to [-20, 20], and lambda to at least
    1e-4. The result has no gradient, and is 0 where it would not be finite.
    """
    options = x.options
    lowest = math.log(1e-8)
    token_log_ratios = (x.logps.detach() - x.old_logps).clamp(-20.0, 20.0)  # (B, T)
    log_w = (token_log_ratios * x.mask).sum(-1, keepdim=True)  # (B, 1)
    if x.sampler_ratio is not None:
        sampler_log_ratios = x.sampler_ratio.log().clamp(lowest, 20.0)  # (B, T) or (B, 1)
        log_w = log_w + sampler_log_ratios.sum(-1, keepdim=True)
    log_w = log_w.clamp(lowest, 20.0)
    positive = x.advantages >= 0
    k = _by_sign(positive, options.vespo_k_pos, options.vespo_k_neg, x)
    lam = _by_sign(positive, options.vespo_lambda_pos, options.vespo_lambda_neg, x)
    lam = lam.clamp(min=1e-4)
    log_phi = lam + k * log_w - lam * log_w.exp()
    phi = log_phi.exp()
    return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
