"""Estimates of the share of groups with signal for any group size, from a few samples of each prompt.

A group of G completions has signal if their rewards differ. If k_1, k_2, ... of n samples of a prompt have the same reward,

    1 - [C(k_1, G) + C(k_2, G) + ...] / C(n, G)

is an unbiased estimate of the chance of signal for G up to n (like pass@k in Chen et al. 2021, arXiv 2107.03374, equation 1).
There is none for larger G. The share p of right completions (with partial credit, of those with a prompt's commonest reward) is
then modelled by a Beta distribution, fitted to the counts by maximum likelihood. The chance of signal is 1 - p^G - (1-p)^G,
with partial credit at least that, and the result is marked as extrapolated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from grpo_ext.curriculum.pass_rates import PassCount

SIZES = (2, 4, 8, 16, 32, 64)
Z = 1.96  # of a 95 % interval
_RESAMPLES = 400
_GAIN = 1.1  # a group size is large enough if its double finds less than a tenth more


@dataclass(frozen=True)
class Estimate:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Expectation:
    """The estimate for one group size."""

    num_generations: int  # G
    with_signal: Estimate  # share of groups
    extrapolated: bool  # whether G is above the samples of a prompt

    @property
    def completions_per_useful_group(self) -> float:
        """Completions to generate for one group with signal; infinite if there is none."""
        return self.num_generations / self.with_signal.value if self.with_signal.value > 0 else math.inf


def chance_rewards_differ(alike: Sequence[int], num_generations: int) -> float:
    """Return the unbiased estimate of the chance that the rewards of a group of G differ, from the samples of one prompt.

    `alike` are k_1, k_2, ..., the numbers of samples with the same reward. `ValueError` if n is less than G.
    """
    if num_generations > (samples := sum(alike)):
        raise ValueError(f"{samples} samples give no unbiased estimate for groups of {num_generations}.")
    return 1 - sum(math.comb(k, num_generations) for k in alike) / math.comb(samples, num_generations)


def wilson(right: float, samples: float) -> Estimate:
    """Return a share with Wilson's 95 % score interval (1927)."""
    if samples == 0:
        return Estimate(math.nan, 0.0, 1.0)
    p, z2 = right / samples, Z**2 / samples
    middle = (p + z2 / 2) / (1 + z2)
    half = Z / (1 + z2) * math.sqrt(p * (1 - p) / samples + z2 / samples / 4)
    return Estimate(p, min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half)))


def solved_shares(counts: Sequence[PassCount]) -> dict[str, Estimate]:
    """Return the shares of the prompts that were solved never, sometimes and always."""
    never = sum(count.right == 0 for count in counts)
    always = sum(count.right == count.samples for count in counts)
    parts = {"never": never, "sometimes": len(counts) - never - always, "always": always}
    return {name: wilson(part, len(counts)) for name, part in parts.items()}


def expect(counts: Sequence[PassCount], num_generations: int, seed: int = 0) -> Expectation:
    """Return the expected share of groups with signal, with the percentile interval of a bootstrap over prompts."""
    fewest = int(min(count.samples for count in counts))
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(counts), [1 / len(counts)] * len(counts), size=_RESAMPLES)  # (R, P)
    extrapolated = num_generations > fewest
    if extrapolated:
        values = _fitted_shares(counts, np.vstack([np.ones_like(drawn[:1]), drawn]), num_generations)
        value, resampled = values[0], values[1:]
    else:
        each = np.array([chance_rewards_differ(kinds_of(c), num_generations) for c in counts])
        value, resampled = each.mean(), drawn @ each / len(counts)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Expectation(num_generations, Estimate(float(value), float(low), float(high)), extrapolated)


def kinds_of(count: PassCount) -> tuple[int, ...]:
    """Return the numbers of a prompt's samples with the same reward."""
    return count.alike or (int(count.right), int(count.samples - count.right))


def _fitted_shares(counts: Sequence[PassCount], weights: np.ndarray, num_generations: int) -> np.ndarray:
    """Return the shares (R,) under the best fitting Beta distribution, for each weighting (R, P) of the prompts."""
    means = torch.sigmoid(torch.linspace(-8, 8, 129, dtype=torch.float64))
    sums = torch.logspace(-2, 3, 61, dtype=torch.float64)
    a = (means.unsqueeze(1) * sums).flatten().unsqueeze(1)  # (grid, 1)
    b = ((1 - means).unsqueeze(1) * sums).flatten().unsqueeze(1)
    # rewards other than right and wrong
    partial = any(not set(kinds_of(c)) <= {c.right, c.samples - c.right} for c in counts)
    pairs = torch.tensor([(max(kinds_of(c)) if partial else c.right, c.samples) for c in counts], dtype=torch.float64)
    kinds, kind_of = pairs.unique(dim=0, return_inverse=True)  # (kinds, 2), (P,)
    right, samples = kinds.T
    likelihood = _log_beta(a + right, b + samples - right) - _log_beta(a, b)  # (grid, kinds)
    of_kind = torch.nn.functional.one_hot(kind_of).double()  # (P, kinds)
    best = (likelihood @ (torch.from_numpy(weights).double() @ of_kind).T).argmax(0)  # (R,)
    a, b = a[best, 0], b[best, 0]
    alike = (_log_beta(a + num_generations, b) - _log_beta(a, b)).exp()
    alike += (_log_beta(a, b + num_generations) - _log_beta(a, b)).exp()
    return (1 - alike).numpy()


def _log_beta(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


def suggest(expectations: Sequence[Expectation]) -> tuple[int, str]:
    """Return the smallest group size whose double finds less than a tenth more groups with signal, and the reason.

    `expectations` have rising sizes, each twice the previous one.
    """
    for now, twice in pairwise(expectations):
        a, b = now.with_signal.value, twice.with_signal.value
        if a > 0 and b < _GAIN * a:
            return now.num_generations, f"{a:.0%} of groups of {now.num_generations} have signal, {b:.0%} of twice that size"
    last = expectations[-1]
    if last.with_signal.value == 0:
        return last.num_generations, "no prompt had different rewards: use easier prompts or a better model first"
    return last.num_generations, (
        f"even groups of {last.num_generations} find more signal than smaller ones: {last.with_signal.value:.0%}; "
        "easier prompts would help more"
    )
