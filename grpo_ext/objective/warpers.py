"""Find the tokens that suppression, top-k, top-p and min-p keep, in transformers and in vLLM."""

import torch
from torch import Tensor
from transformers import LogitsProcessor, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo_ext.objective.sampling import SamplingParams

_NO_IDS = torch.empty(0, 0, dtype=torch.long)  # these warpers do not read the tokens


def kept_tokens(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return a bool mask (N, V), true for tokens that suppression and truncation keep.

    Truncation uses transformers' logits warpers, which keep the same tokens as vLLM's
    `apply_top_k_top_p` and `MinPLogitsProcessor`, even where scores tie. They run in the sampler's
    order, and each renormalizes over the tokens that the previous ones kept.

    Args:
        scores: (N, V), float32, the logits already divided by the temperature.
        params: the sampling parameters; `masked` and the temperature are not used.
    """
    top: list[LogitsProcessor] = []
    if params.top_k:
        top.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        top.append(TopPLogitsWarper(params.top_p))
    min_p: list[LogitsProcessor] = []
    if params.min_p:
        min_p.append(MinPLogitsWarper(params.min_p))
    steps = top + min_p
    if params.order == "vllm":
        steps = min_p + top
    suppressed = suppressed_ids(scores, params)  # (S,)
    scores = scores.index_fill(-1, suppressed, -torch.inf)
    for step in steps:
        scores = step(_NO_IDS, scores)
    return scores > -torch.inf


def suppressed_ids(scores: Tensor, params: SamplingParams) -> Tensor:
    """Return the suppressed token ids (S,) that are in the vocabulary of `scores` (N, V).

    Other ids are ignored, as in transformers.
    """
    vocab_size = scores.size(-1)
    ids = [token for token in params.suppressed if 0 <= token < vocab_size]
    return torch.tensor(ids, dtype=torch.long, device=scores.device)
