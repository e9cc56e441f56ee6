"""Estimators of KL(policy || reference), one value a token, and what each trains.

With r = p_ref(token) / p(token), J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.

==  ===============  ========  =======================================  ===============================
k1  - log r          unbiased  its gradient is 0 in the mean            corrected: that of KL(p, p_ref)
k2  (log r)^2 / 2    biased    its gradient is that of KL(p, p_ref)     corrected: that of no KL
k3  r - 1 - log r    unbiased  its gradient is that of KL(p_ref, p),    corrected: that of KL(p, p_ref)
                               as in GRPO (arXiv 2402.03300, eq. 4)
==  ===============  ========  =======================================  ===============================

Corrected is times the importance ratio p / p_old (DeepSeek-V3.2, arXiv 2512.02556), which makes tokens of an older policy count
as p's and carries the gradient that the estimate lacks. Without it, all of this holds where p_old is p.
"""

from __future__ import annotations

import torch

KL_ESTIMATORS = ("k1", "k2", "k3")
# (estimator, whether it is corrected) that train something else than a KL: why, and what to write instead.
REFUSED = {
    ("k1", False): (
        "k1 without the importance ratio has a gradient of 0 in the mean, so that beta regularises nothing: write "
        "use_bias_correction_kl: true, or kl_estimator: k2 or k3"
    ),
    ("k2", True): (
        "k2 times the importance ratio does not have the gradient of a KL: write use_bias_correction_kl: false, or "
        "kl_estimator: k3"
    ),
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
