"""A supervised term on completions that are known to be correct.

    L = L_policy + c L_NLL
    L_NLL = - (1 / sum over correct i of n_i) sum over correct i, t of log p(a_it)

This is the "positive-example LM loss" of VAPO (arXiv 2504.05118), where c is 0.1. Correct
completions are treated as a dataset of their own: they are not weighted by advantages or importance
ratios, and a group whose completions are all correct counts in full.
"""

import torch
from torch import Tensor


def positive_nll_terms(logps: Tensor, right: Tensor) -> Tensor:
    """Return the NLL of each token in correct completions, and 0 elsewhere: (B, T).

    Args:
        logps: (B, T), the policy's log-probs, with gradient.
        right: (B,), 1 for correct completions, else 0.
    """
    return torch.where(right.unsqueeze(1) > 0, -logps, torch.zeros_like(logps))


def positive_nll_share(terms: Tensor, mask: Tensor, right_tokens: float) -> Tensor:
    """Return a micro-batch's share of the mean NLL over the tokens of correct completions.

    Args:
        terms: (B, T), from `positive_nll_terms`.
        mask: (B, T), 1 for counted tokens.
        right_tokens: the number of tokens of correct completions in the loss of the whole optimizer
            step, over all micro-batches and ranks.

    Returns:
        A scalar. Summed over the micro-batches and ranks of a step, it is L_NLL (0 for a step
        without correct completions).
    """
    return (terms * mask).sum() / max(right_tokens, 1.0)
