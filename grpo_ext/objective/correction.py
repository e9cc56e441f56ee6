"""The correction for a separate sampler: importance weights between two engines.

A ratio is the trainer's probability of a token divided by the sampler's. Both come from the same
policy, but the two engines round differently. "token" modes weight each token by its own ratio,
"sequence" modes by the product over the completion, and "geometric" modes by the geometric mean
over the completion, which does not grow with its length. "truncate" clamps a ratio to the bounds,
and "mask" sets a ratio outside them to 0. The mode names are the values of TRL's
`vllm_importance_sampling_mode`; papers call truncated ratios TIS and masked ratios MIS.
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
    """Return the importance weights that multiply the policy term.

    Args:
        logps: (B, T), the trainer's log-probs under the policy that sampled.
        sampled: (B, T), the sampler's log-probs; NaN gives the token a ratio of 1.
        mask: (B, T), 1 for counted tokens.
        mode: "token_truncate", "token_mask", "sequence_truncate", "sequence_mask",
            "geometric_truncate" or "geometric_mask".
        lowest, highest: bounds of the ratio; `None`: no bound.

    Returns:
        (B, T) for "token" modes, (B, 1) for the others.
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
