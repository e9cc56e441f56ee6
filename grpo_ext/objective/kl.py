"""Estimators of KL(policy || reference), one value a token, and what each trains.

With p the policy, r = p_ref(token) / p(token), and tokens drawn from p (J. Schulman, "Approximating KL Divergence", 2020,
http://joschu.net/blog/kl-approx.html):

| | estimate | its mean | gradient it trains with | the same times p / p_old |
|---|---|---|---|---|
| k1 | - log r | KL(p, p_ref) | none: its mean is 0, so it is refused | of KL(p, p_ref) |
| k2 | (log r)^2 / 2 | not the KL | of KL(p, p_ref) | of the mean of (log r)^2 / 2, so it is refused |
| k3 | r - 1 - log r | KL(p, p_ref) | of KL(p_ref, p) | of KL(p, p_ref) |

k3 as it stands is the one of GRPO (arXiv 2402.03300, eq. 4). The importance ratio (DeepSeek-V3.2, arXiv 2512.02556) makes
tokens of an older policy p_old count as p's, and carries the gradient that the estimate lacks; without it, all of this holds
where p_old is p.
"""

from __future__ import annotations

import torch

KL_ESTIMATORS = ("k1", "k2", "k3")
# (estimator, whether it is corrected) that train something else than a KL: why, and what to write instead.
REFUSED = {
    (
        "k1",
        False,
    ): "k1 without the importance ratio has a gradient of 0 in the mean, so that beta regularises nothing: write "
    "use_bias_correction_kl: true, or kl_estimator: k2 or k3",
    (
        "k2",
        True,
    ): "k2 times the importance ratio does not have the gradient of a KL: write use_bias_correction_kl: false, or "
    "kl_estimator: k3",
}


def kl_per_token(
    logps: torch.Tensor, ref_logps: torch.Tensor, estimator: str = "k3", ratio: torch.Tensor | None = None
) -> torch.Tensor:
    """One estimate a token.

    Args:
        logps: (B, T), of the policy, with gradient.
        ref_logps: (B, T), of the reference.
        estimator: "k1", "k2" or "k3".
        ratio: (B, T), each token's importance ratio, with gradient, to correct by; `None` does not correct.

    Returns:
        (B, T).

    Raises:
        ValueError: for another estimator.
    """
    log_r = ref_logps - logps
    if estimator == "k1":
        kl = -log_r
    elif estimator == "k2":
        kl = log_r**2 / 2
    elif estimator == "k3":
        kl = torch.exp(log_r) - log_r - 1
    else:
        raise ValueError(f"kl_estimator is {estimator!r}: write one of {', '.join(KL_ESTIMATORS)}.")
    return kl if ratio is None else kl * ratio
