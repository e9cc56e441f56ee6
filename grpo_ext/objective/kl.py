"""Estimators of KL(policy || reference), one value a token; tokens were drawn from the policy that sampled them.

With r = p_ref(token) / p(token), J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html:

    k1 = - log r            unbiased, high variance, may be negative
    k2 = (log r)^2 / 2      biased, low variance
    k3 = r - 1 - log r      unbiased, low variance, never negative; the one of GRPO (arXiv 2402.03300, eq. 4)

Where the policy has moved on since it sampled, all three are means over the wrong distribution; multiplying by the importance
ratio p / p_old puts that right (DeepSeek-V3.2, arXiv 2512.02556).
"""

from __future__ import annotations

import torch

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_per_token(
    logps: torch.Tensor, ref_logps: torch.Tensor, estimator: str = "k3", ratio: torch.Tensor | None = None
) -> torch.Tensor:
    """One estimate a token.

    Args:
        logps: (B, T), of the policy, with gradient.
        ref_logps: (B, T), of the reference.
        estimator: "k1", "k2" or "k3".
        ratio: (B, T) or (B, 1), the importance ratio to correct by; `None` does not correct.

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
