"""Which tokens a sampler keeps, given its logits: the truncations of transformers and vLLM, with ties."""

import torch

from grpo_ext.objective.sampling import SamplingParams


def kept_tokens(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the tokens that suppression and truncation keep: (N, V), bool, at least one token per row.

    The steps are those of transformers' `TopKLogitsWarper`, `TopPLogitsWarper` and `MinPLogitsWarper` and of vLLM's
    `apply_top_k_top_p` and `MinPLogitsProcessor`: each step uses the renormalised tokens that the step before kept.

    Args:
        scores: (N, V), the logits divided by the temperature, float32.
        params: suppressed tokens, truncation and its order.
    """
    steps = {"hf": (_top_k, _top_p, _min_p), "vllm": (_min_p, _top_k, _top_p)}[params.order]
    kept = torch.ones_like(scores, dtype=torch.bool).index_fill_(-1, suppressed_ids(scores, params), False)
    for step in steps:
        kept = step(scores, kept, params)
    return kept


def suppressed_ids(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the suppressed tokens (S,) that are in the vocabulary of the scores (N, V), as transformers does."""
    ids = [token for token in params.suppressed if 0 <= token < scores.size(-1)]
    return torch.tensor(ids, dtype=torch.long, device=scores.device)


def _top_k(scores: torch.Tensor, kept: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if not params.top_k:
        return kept
    left = scores.masked_fill(~kept, -torch.inf)
    smallest = left.topk(min(params.top_k, scores.size(-1)), dim=-1).values[:, -1:]
    return kept & (scores >= smallest)  # ties with the k-th stay


def _top_p(scores: torch.Tensor, kept: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if params.top_p >= 1.0:
        return kept
    ascending, order = scores.masked_fill(~kept, -torch.inf).sort(dim=-1)
    drop = ascending.softmax(dim=-1).cumsum_(dim=-1) <= 1 - params.top_p
    drop[:, -1] = False
    return kept & ~torch.zeros_like(kept).scatter_(-1, order, drop)


def _min_p(scores: torch.Tensor, kept: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if not params.min_p:
        return kept
    probs = scores.masked_fill(~kept, -torch.inf).softmax(dim=-1)
    return kept & (probs >= params.min_p * probs.amax(dim=-1, keepdim=True))
