"""Find sampled tokens that top-k, top-p or min-p on the trainer's logits would have removed.

The sampler filters its own logits. The trainer's logits are rounded differently, so a token at the
edge of the set that the sampler keeps may be outside the set that the trainer would keep.
"""

import torch
from torch import Tensor

from grpo_ext.objective.logit_blocks import logit_blocks
from grpo_ext.objective.logprob import LogitTransform
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens


@torch.no_grad()
def edge_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    params: SamplingParams,
    logit_transform: LogitTransform,
) -> Tensor:
    """Return which of the targets would be removed by suppression, top-k, top-p or min-p.

    The filters are applied to the trainer's logits, which are computed from `hidden`.

    Args:
        hidden: (N, H), the model's last hidden states.
        weight: (V, H), the weight of the language model head.
        bias: (V,), the bias of the head; `None` if it has none.
        targets: (N,), the sampled tokens.
        params: the sampling parameters.
        logit_transform: the scale and soft cap to apply to the logits.

    Returns:
        A float32 tensor (N,), with 1 for targets that would be removed, else 0.
    """
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    removed = torch.zeros(hidden.size(0), device=hidden.device)
    for _, logits, tiles in logit_blocks(hidden, weight, bias, dtype, params):
        logit_transform.apply_(logits)
        for rows, z in tiles:  # (n, V)
            kept = kept_tokens(z.div_(params.temperature), params)
            target = targets[rows].unsqueeze(-1)  # (n, 1)
            removed[rows] = (~kept).gather(-1, target).squeeze(-1).float()
    return removed
