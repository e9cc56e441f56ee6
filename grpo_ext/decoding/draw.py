"""Drawing the next tokens."""

from __future__ import annotations

import torch


def draw_tokens(scores: torch.Tensor, do_sample: bool) -> torch.Tensor:
    """The next token of each row.

    Args:
        scores: (b, V), float32, as the logits processors left them.
        do_sample: draw from their softmax; else take the most likely token.

    Returns:
        (b,), int64.

    Raises:
        ValueError: if a row's scores make no distribution (NaN, or no token left).
    """
    if not do_sample:
        return scores.argmax(dim=-1)
    probs = scores.softmax(dim=-1)  # (b, V)
    if probs.device.type != "cpu":
        return torch.multinomial(probs, num_samples=1).squeeze(1)
    return _invert(probs)


def _invert(probs: torch.Tensor) -> torch.Tensor:
    """One token a row by the inverse of the distribution function, in float64.

    On a CPU `torch.multinomial` draws an exponential variate for each token of the vocabulary; this draws one a row.
    """
    mass = probs.cumsum(dim=-1, dtype=torch.float64)  # (b, V)
    total = mass[:, -1:]
    if not bool((total > 0).all()):
        raise ValueError("The scores of a row make no distribution: they are NaN, or every token was taken away.")
    point = torch.rand(total.shape, dtype=torch.float64) * total
    point = torch.minimum(
        point, torch.nextafter(total, torch.zeros_like(total))
    )  # below the total, whatever rounding did
    return torch.searchsorted(mass, point, right=True).squeeze(1)
