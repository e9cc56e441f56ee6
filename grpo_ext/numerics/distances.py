"""Compute the distance between two sets of log-probs of the same tokens, overall and in parts.

With r = p_other(token) / p(token) and tokens drawn from p, KL(p || p_other) is estimated by k3, the
mean of r - 1 - log r (http://joschu.net/blog/kl-approx.html): unbiased, never negative, and less
noisy than the mean of - log r.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_ext.common.estimates import variance_of_mean
from grpo_ext.common.mismatch_bars import KL, MEAN_LOG_RATIO, SHARE_FAR
from grpo_ext.step.metrics import FAR_RATIO

QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")
# lower bounds of the bands of probability, with their names
BANDS = (
    (0.9, "p from 0.9"),
    (0.5, "p from 0.5 to 0.9"),
    (0.1, "p from 0.1 to 0.5"),
    (0.01, "p from 0.01 to 0.1"),
    (0.0, "p below 0.01"),
)


@dataclass(frozen=True)
class Distance:
    """The distance between two sets of log-probs of the same tokens."""

    tokens: int  # number of compared tokens whose log ratio is finite
    kl: float  # mean of k3, in nats per token
    kl_error: float | None  # its standard error over completions; `None` for a single completion
    mean: float  # mean |log ratio|
    largest: float  # largest |log ratio|
    share_far: float  # share of ratios outside 0.9 to 1.1
    not_finite: int  # number of tokens whose log ratio is not finite; left out of all other figures

    @property
    def exceeded(self) -> list[str]:
        """The names of the figures above their limits: "not finite", "KL", "mean" or "share".

        The list is empty if all figures are within their limits.
        """
        names = []
        if self.not_finite:
            names.append("not finite")
        if self.kl > KL.limit:
            names.append("KL")
        if self.mean > MEAN_LOG_RATIO.limit:
            names.append("mean")
        if self.share_far > SHARE_FAR.limit:
            names.append("share")
        return names


def distance(logps: Tensor, other: Tensor, mask: Tensor) -> Distance | None:
    """Return the distance between two sets of log-probs; `None` if the mask selects no token.

    Tokens whose log ratio is not finite are counted, and otherwise ignored. If no token has a
    finite log ratio, `kl_error` is `None`, and all other figures except the counts are NaN.

    Args:
        logps: (B, T), the reference log-probs, usually under the policy that drew the tokens.
        other: (B, T), the log-probs of the same tokens to compare with the reference.
        mask: (B, T), nonzero for the tokens to compare.
    """
    compared = mask.bool()  # (B, T)
    log_ratio = (other.double() - logps.double())[compared]  # (tokens,)
    if log_ratio.numel() == 0:
        return None
    finite = log_ratio.isfinite()
    rows = compared.nonzero()[:, 0][finite]
    values = log_ratio[finite]
    if values.numel() == 0:
        nothing = math.nan
        return Distance(0, nothing, None, nothing, nothing, nothing, log_ratio.numel())
    kl = values.expm1() - values
    is_far = (values.exp() - 1).abs() > FAR_RATIO
    return Distance(
        tokens=values.numel(),
        kl=kl.mean().item(),
        kl_error=error_of_mean(kl, rows),
        mean=values.abs().mean().item(),
        largest=values.abs().max().item(),
        share_far=is_far.double().mean().item(),
        not_finite=log_ratio.numel() - values.numel(),
    )


def error_of_mean(values: Tensor, rows: Tensor) -> float | None:
    """Return the standard error of the mean over tokens; `None` for a single completion.

    Tokens of one completion are not independent, so the error is cluster-robust.

    Args:
        values: (N,), a value for each token.
        rows: (N,), the completion of each token.
    """
    _, cluster = np.unique(rows.cpu().numpy(), return_inverse=True)
    if cluster.max() == 0:
        return None
    return math.sqrt(variance_of_mean(values.cpu().numpy(), cluster))


def by_position(
    logps: Tensor, other: Tensor, mask: Tensor, lengths: Tensor
) -> dict[str, Distance | None]:
    """Return the distance in each quarter of the completions, by the name of the quarter.

    The distance is `None` in a quarter without tokens.

    Args:
        logps: (B, T), the reference log-probs.
        other: (B, T), the log-probs of the same tokens to compare with the reference.
        mask: (B, T), nonzero for the tokens to compare.
        lengths: (B,), the lengths of the completions in tokens.
    """
    places = torch.arange(mask.size(1), device=mask.device)  # (T,)
    row_lengths = lengths.clamp(min=1).unsqueeze(1)  # (B, 1)
    quarter = places * len(QUARTERS) // row_lengths  # (B, T)
    parts = {}
    for index, name in enumerate(QUARTERS):
        parts[name] = distance(logps, other, mask.bool() & (quarter == index))
    return parts


def by_probability(logps: Tensor, other: Tensor, mask: Tensor) -> dict[str, Distance | None]:
    """Return the distance for each band of probabilities, by the name of the band in `BANDS`.

    The distance is `None` in a band without tokens.

    Args:
        logps: (B, T), the reference log-probs, which decide the band of each token.
        other: (B, T), the log-probs of the same tokens to compare with the reference.
        mask: (B, T), nonzero for the tokens to compare.
    """
    p = logps.exp()  # (B, T)
    left = mask.bool()  # (B, T), tokens that are in no band yet
    parts = {}
    for lowest, name in BANDS:
        in_band = left & (p >= lowest)
        parts[name] = distance(logps, other, in_band)
        left = left & ~in_band
    return parts
