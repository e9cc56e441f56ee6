"""A supervised term on completions that are known to be right.

    L = L_policy + c L_NLL
    L_NLL = - (1 / sum over right i of n_i) sum over right i, t of log p(a_it)

VAPO (arXiv 2504.05118, "positive-example LM loss", where c is 0.1). Right completions are a data
set of their own: neither advantages nor importance ratios weigh them, and a group whose completions
are all right counts in full.
"""

import torch
from torch import Tensor


def positive_nll_terms(logps: Tensor, right: Tensor) -> Tensor:
    """Return the negative log-likelihood of the tokens of right completions, else 0: (B, T).

    Args:
        logps: (B, T), with gradient.
        right: (B,), 1 for right completions.
    """
    return torch.where(right.unsqueeze(1) > 0, -logps, torch.zeros_like(logps))


def positive_nll_share(terms: Tensor, mask: Tensor, right_tokens: float) -> Tensor:
    """Return a micro-batch's share of the mean over the tokens of the step's right completions.

    Args:
        terms: (B, T), from `positive_nll_terms`.
        mask: (B, T), 1 for counted tokens.
        right_tokens: tokens of right completions in the loss of the whole optimizer step, over all
            micro-batches and ranks.

    Returns:
        A scalar; its sum over the micro-batches and ranks of a step is L_NLL, 0 for a step without
        right completions.
    """
    return (terms * mask).sum() / max(right_tokens, 1.0)
