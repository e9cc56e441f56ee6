"""The correction for a separate sampler: p as scored here over p as the sampler had it, for one policy in two engines.

"token" modes weigh each token by its own ratio, "sequence" modes by the product over the completion; "truncate" cuts a ratio
off at the bounds, "mask" sets one outside of them to 0 (TRL's `vllm_importance_sampling_mode`; TIS, MIS).
"""

from __future__ import annotations

import torch


def sampler_correction(
    logps: torch.Tensor,
    sampled: torch.Tensor,
    mask: torch.Tensor,
    mode: str,
    lowest: float | None = None,
    highest: float | None = None,
) -> torch.Tensor:
    """What the policy term is multiplied by.

    Args:
        logps: (B, T), of the policy that sampled, as scored here.
        sampled: (B, T), the sampler's own; NaN where it has none, and then the ratio is 1.
        mask: (B, T), 1 for tokens that count.
        mode: "token_truncate", "token_mask", "sequence_truncate" or "sequence_mask".
        lowest, highest: bounds of the ratio; `None` is open.

    Returns:
        (B, T) for "token" modes, (B, 1) for "sequence" modes.
    """
    difference = ((logps - sampled) * mask).nan_to_num(nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    low, high = -torch.inf if lowest is None else lowest, torch.inf if highest is None else highest
    inside = ratio.clamp(low, high)
    return inside if mode.endswith("truncate") else ratio.masked_fill(ratio != inside, 0.0)
