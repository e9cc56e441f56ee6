"""Draw the next token of each row from its scores, using a fast method on a CPU.

On a CPU, a token is drawn by inverse transform sampling, with one random variate per row.
`torch.multinomial` is slower there, because it draws an exponential variate for each token of the
vocabulary.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST_BLOCK = 256  # maximum number of tokens in a block of the vocabulary
MOST_SUMMED = 2**15  # for batches of up to this many probabilities, summing all is the fastest


def draw_tokens(scores: Tensor, do_sample: bool) -> Tensor:
    """Return the next token of each row, as an int64 tensor (b,).

    Args:
        scores: (b, V), float32, the scores from the logits processors.
        do_sample: whether to draw from the softmax of the scores; if false, the token with the
            highest score is returned.

    Raises:
        ValueError: on a CPU, if the scores to sample from are NaN or leave no token.
    """
    if not do_sample:
        return scores.argmax(dim=-1)
    probs = scores.softmax(dim=-1)  # (b, V)
    if probs.device.type != "cpu":
        return torch.multinomial(probs, num_samples=1).squeeze(1)
    if probs.numel() > MOST_SUMMED:
        return draw_by_blocks(probs)
    mass = probs.cumsum(-1, dtype=torch.float64)  # (b, V)
    return first_above(mass, point_below(mass[:, -1:])).squeeze(1)


def draw_by_blocks(probs: Tensor) -> Tensor:
    """Draw a token for each row: first a block of the vocabulary, then a token in the block.

    Only the probabilities in one block per row are accumulated token by token, in float64.

    Args:
        probs: (b, V), float32, the probabilities of the tokens, on the CPU.

    Returns:
        The drawn tokens (b,), int64; a token of probability 0 is never drawn.

    Raises:
        ValueError: if the probabilities of a row are NaN or all 0.
    """
    block_size = math.gcd(probs.size(-1), LARGEST_BLOCK)
    blocks = probs.unflatten(-1, (-1, block_size))  # (b, blocks, tokens)
    block_mass = blocks.sum(-1).cumsum(-1, dtype=torch.float64)  # (b, blocks)
    point = point_below(block_mass[:, -1:])  # (b, 1)
    block = first_above(block_mass, point)  # (b, 1)
    mass_before = pad(block_mass, (1, 0)).gather(-1, block)  # (b, 1)
    rows = torch.arange(len(probs)).unsqueeze(-1)
    token_mass = blocks[rows, block].squeeze(1).cumsum(-1, dtype=torch.float64)  # (b, tokens)
    token = first_above(token_mass, point - mass_before)  # (b, 1)
    return (block * block_size + token).squeeze(1)


def point_below(total: Tensor) -> Tensor:
    """Draw a uniform float64 variate, (b, 1), between 0 and the total mass of each row.

    Args:
        total: (b, 1), the total mass of each row.

    Raises:
        ValueError: if a total is NaN or 0.
    """
    if not (total > 0).all():
        raise ValueError(
            "Cannot sample a token: the probabilities are NaN, or every token was removed. Check "
            "the model's weights for NaN, and generation_kwargs for options that remove tokens."
        )
    return torch.rand(total.shape, dtype=torch.float64) * total


def first_above(mass: Tensor, point: Tensor) -> Tensor:
    """Return the first index (b, 1) at which the cumulative `mass` (b, n) exceeds `point` (b, 1).

    If rounding has moved a point to the total or above, it is first lowered to just below the
    total, so that the index always belongs to an entry with a mass above 0.
    """
    total = mass[:, -1:]
    largest_point = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(mass, torch.minimum(point, largest_point), right=True)
