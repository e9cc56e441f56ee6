"""Estimators of KL(policy || reference) per token, and the expected gradient of each.

Here r is p_ref(token) / p(token). The estimates are from J. Schulman, "Approximating KL Divergence"
(2020), http://joschu.net/blog/kl-approx.html.

==  ===============  ========  ====================================  ==================
k   estimate         bias      expected gradient                     if corrected
==  ===============  ========  ====================================  ==================
k1  - log r          unbiased  0                                     that of KL(p, p_ref)
k2  (log r)^2 / 2    biased    that of KL(p, p_ref)                  not of any KL
k3  r - 1 - log r    unbiased  that of KL(p_ref, p), as in GRPO      that of KL(p, p_ref)
                               (arXiv 2402.03300, eq. 4)
==  ===============  ========  ====================================  ==================

"Corrected" means multiplied by the importance ratio p / p_old (DeepSeek-V3.2, arXiv 2512.02556),
which reweights tokens of an older policy and adds the missing part of the gradient. Without the
correction, the table holds only if p_old equals p.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recipes need only `REFUSED`, without importing torch
    from torch import Tensor

# Pairs (estimator, corrected) that do not have the gradient of any KL divergence, each with the
# reason and what to set instead.
REFUSED = {
    ("k1", False): (
        "k1 without the importance ratio has an expected gradient of 0, so beta has no effect. "
        "Set `use_bias_correction_kl: true`, or `kl_estimator: k2` or `k3`"
    ),
    ("k2", True): (
        "k2 times the importance ratio does not have the gradient of any KL divergence. Set "
        "`use_bias_correction_kl: false`, or `kl_estimator: k3`"
    ),
}


def kl_per_token(
    logps: Tensor,
    ref_logps: Tensor,
    estimator: str = "k3",
    ratio: Tensor | None = None,
) -> Tensor:
    """Return an estimate of the KL divergence for each token, of shape (B, T).

    Args:
        logps: (B, T), the policy's log-probs, with gradient.
        ref_logps: (B, T), the reference's log-probs.
        estimator: "k1", "k2" or "k3".
        ratio: (B, T), the importance ratio of each token, with gradient, by which the estimate is
            multiplied; if `None`, the estimate is not corrected.
    """
    log_r = ref_logps - logps
    if estimator == "k3" and ratio is not None:
        # r times the ratio is p_ref / p_old, which does not depend on the policy. If it stayed in
        # the graph, the gradients of its two factors would cancel, which leaves only rounding
        # errors where r is large.
        return (log_r.exp() * ratio).detach() - (log_r + 1) * ratio
    if estimator == "k1":
        kl = -log_r
    elif estimator == "k2":
        kl = log_r**2 / 2
    else:
        kl = log_r.exp() - log_r - 1
    if ratio is not None:
        kl = kl * ratio
    return kl
