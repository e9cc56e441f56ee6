"""Importance weights that correct the gradient for a separate sampler.

A ratio is the trainer's probability of a token divided by the sampler's. Both come from the same
policy, but the two engines round differently. "token" modes weight each token by its own ratio,
"sequence" modes by the product of the ratios over the completion, and "geometric" modes by their
geometric mean, which does not grow with the length of the completion. "truncate" clamps the result
to the bounds, and "mask" sets a result outside the bounds to 0. The mode names are the values of
TRL's `vllm_importance_sampling_mode`; papers call truncated ratios TIS and masked ratios MIS.
"""

from torch import Tensor


def sampler_correction(
    logps: Tensor,
    sampled: Tensor,
    mask: Tensor,
    mode: str,
    lowest: float | None = None,
    highest: float | None = None,
) -> Tensor:
    """Return the importance weights by which to multiply the policy term.

    Args:
        logps: (B, T), the trainer's log-probs under the policy that sampled.
        sampled: (B, T), the sampler's log-probs; a token with NaN has a ratio of 1.
        mask: (B, T), 1 for counted tokens.
        mode: "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
            "geometric_truncate" or "geometric_mask".
        lowest: the lower bound; `None` means no bound.
        highest: the upper bound; `None` means no bound.

    Returns:
        The weights, of shape (B, T) for "token" modes and (B, 1) for the others.
    """
    difference = ((logps - sampled) * mask).nan_to_num(nan=0.0)
    if not mode.startswith("token"):
        difference = difference.sum(-1, keepdim=True)
    if mode.startswith("geometric"):
        difference = difference / mask.sum(-1, keepdim=True).clamp(min=1.0)
    ratio = difference.exp()
    clamped = ratio.clamp(lowest or 0.0, highest)  # a ratio is never below 0
    if mode.endswith("truncate"):
        return clamped
    return ratio.masked_fill(ratio != clamped, 0.0)
