"""Which tokens a sampler keeps, given its logits: the truncations of transformers and vLLM, with
ties.
"""

from typing import Any

import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_ext.objective.sampling import SamplingParams


def kept_tokens(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the tokens that suppression and truncation keep: (N, V), bool, at least one token per
    row.

    The steps are transformers' own, and equal vLLM's `apply_top_k_top_p` and `MinPLogitsProcessor`,
    in the order of the sampler: each step uses the renormalised tokens that the step before kept.

    Args:
        scores: (N, V), the logits divided by the temperature, float32.
        params: suppressed tokens, truncation and its order.
    """
    top: list[Any] = [TopKLogitsWarper(params.top_k)] if params.top_k else []
    top += [TopPLogitsWarper(params.top_p)] if params.top_p < 1.0 else []
    least: list[Any] = [MinPLogitsWarper(params.min_p)] if params.min_p else []
    left = scores.index_fill(-1, suppressed_ids(scores, params), -torch.inf)
    for step in least + top if params.order == "vllm" else top + least:
        left = step(None, left)
    return left > -torch.inf


def suppressed_ids(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the suppressed tokens (S,) that are in the vocabulary of the scores (N, V), as
    transformers does.
    """
    ids = [token for token in params.suppressed if 0 <= token < scores.size(-1)]
    return torch.tensor(ids, dtype=torch.long, device=scores.device)
