"""Find the best `num_generations` for some training prompts, from several completions of each.

With a fixed number N of completions per step, there are N / G groups of G completions. With
`scale_rewards: group` and rewards of 0 and 1, the gradient of a group is

    s (mean over correct of grad log p - mean over wrong of grad log p),

where s is the std of the group's rewards, which is 0 if all of them are equal. If the gradients of
different prompts point in different directions, the noise in the mean over N / G prompts falls with
the square root of N / G, so the signal-to-noise ratio is proportional to

    E[s(G)] / sqrt(G).

Large groups find the rare correct completion of a hard prompt, while small groups leave room for
more prompts. If all prompts have the same low pass rate p, the best G is about sqrt(2 / p), and
anything from half to twice that loses little. If the gradients of prompts point in the same
direction, larger groups lose less than this formula says.

The share of groups with signal per completion, E[1 - p^G - (1-p)^G] / G, is of no use here: it
never increases with G, so the best G would always be 2.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from grpo_ext.common.estimates import Array
from grpo_ext.evaluation.score import OUTCOME, Sample, by_row, problems_of, with_outcome

_ORDERS = 1000  # number of random orders of a row with more than two different scores
_RESAMPLES = 2000  # number of bootstrap resamples of the problems, for the 95% range


@dataclass(frozen=True)
class GroupSize:
    """The best `num_generations` for some rows.

    Args:
        best: the best group size.
        low: the lower bound of the range that contains the best group size in 95% of resamples of
            the problems; `None` for a single problem.
        high: the upper bound of this range; `None` for a single problem.
        efficiency: for each group size from 2 on, the signal-to-noise ratio relative to the best.
    """

    best: int
    low: int | None
    high: int | None
    efficiency: dict[int, float]

    @property
    def largest(self) -> int:
        """The largest group size that was compared: the number of completions of each row."""
        return max(self.efficiency)

    def sentence(self, present: int | None) -> str:
        """Return advice in one line; `present` is the recipe's `num_generations`, if it has one."""
        if self.best == self.largest:
            interval = "" if self.low is None else f" (95 % range from {self.low})"
            text = (
                f"Best num_generations for these rows: {self.best} or more{interval}. With "
                f"{self.largest} completions of each row, larger groups cannot be judged. To "
                f"compare larger groups, use --num_samples {2 * self.largest}."
            )
        else:
            interval = "" if self.low is None else f" (95 % range {self.low} to {self.high})"
            text = f"Best num_generations for these rows: {self.best}{interval}."
        if present is not None and present != self.best and present in self.efficiency:
            text += (
                f" With the recipe's num_generations of {present}, the signal-to-noise ratio is "
                f"{self.efficiency[present]:.0%} of the best for the same number of completions."
            )
        return text


def advice_on_group_size(size: GroupSize | None, k: int, present: int | None) -> str:
    """Return advice on `num_generations` in one line.

    Args:
        size: the result of `best_group_size`.
        k: the number of completions of each row.
        present: the recipe's current `num_generations`, if it has one.
    """
    if k < 2:
        return (
            "num_generations cannot be judged with a single completion of each row. Use "
            "--num_samples 2 or more."
        )
    if size is None:
        return (
            f"No num_generations up to {k} gives signal, because no row has {k} scored completions "
            "with different outcome rewards."
        )
    return size.sentence(present)


def best_group_size(
    samples: list[Sample],
    outcomes: Sequence[str],
    k: int,
) -> GroupSize | None:
    """Return the best group size from 2 to `k`, or `None` if there is no training signal.

    There is no signal if `k` is below 2, there are no outcome rewards, or no row has `k` scored
    completions with different outcome rewards.

    Args:
        samples: `k` completions of each row. Rows with fewer scored completions are left out.
        outcomes: the names of the rewards that may judge a row, in the order of `outcome_order`.
        k: the number of completions of each row.
    """
    if k < 2 or not outcomes:
        return None
    scores = by_row(with_outcome(samples, outcomes), OUTCOME).dropna()
    counts = scores.groupby(level=0).size()
    complete_rows = counts.index[counts >= k]
    if complete_rows.empty:
        return None
    table = []
    for row in complete_rows:
        table.append(scores.loc[row].to_numpy()[:k])
    problems = problems_of(samples, complete_rows)
    return size_of(np.stack(table), problems)


def size_of(scores: Array, problems: Sequence[Hashable]) -> GroupSize | None:
    """Return the best group size for `scores`, with its 95% range.

    Return `None` if all scores within each row are equal.

    Args:
        scores: (rows, k), the score of each completion.
        problems: the problem of each row; rows of the same problem are resampled together for the
            range.
    """
    stds = mean_stds(scores)  # (rows, sizes)
    if not stds.any():
        return None
    sizes = np.arange(2, scores.shape[1] + 1)
    problem_of_row, distinct = pd.factorize(pd.Series(problems, dtype=object))  # (rows,)
    count = len(distinct)
    problem_stds = np.zeros((count, len(sizes)))  # sums over the rows of each problem
    np.add.at(problem_stds, problem_of_row, stds)
    signal = problem_stds.sum(axis=0) / np.sqrt(sizes)  # (sizes,)
    best = int(sizes[signal.argmax()])
    low = None
    high = None
    if count > 1:
        rng = np.random.default_rng(0)
        probabilities = np.full(count, 1 / count)
        draws = rng.multinomial(count, probabilities, size=_RESAMPLES)
        resampled = draws @ problem_stds / np.sqrt(sizes)  # (resamples, sizes)
        with_signal = resampled[resampled.any(axis=1)]
        best_sizes = sizes[with_signal.argmax(axis=1)]
        bounds = np.quantile(best_sizes, (0.025, 0.975), method="nearest")
        low, high = bounds.astype(int).tolist()
    relative = signal / signal.max()
    efficiency = dict(zip(sizes.tolist(), relative.tolist(), strict=True))
    return GroupSize(best, low, high, efficiency)


def mean_stds(scores: Array) -> Array:
    """Return the mean std of the scores in groups of 2 to k completions of each row.

    For a row with two different scores, this is the exact mean over all groups of a size. For a row
    with more, it is an unbiased estimate from random groups: the prefixes of random orders of the
    row's completions. For a row whose scores are all equal, the mean std is 0.

    Args:
        scores: (rows, k), the score of each completion.

    Returns:
        (rows, k - 1), the mean population std for each group size from 2 to k.
    """
    steps = np.diff(np.sort(scores, axis=1), axis=1)  # (rows, k - 1)
    distinct_scores = 1 + (steps > 0).sum(axis=1)  # (rows,)
    two = distinct_scores == 2
    several = distinct_scores > 2
    stds = np.zeros(steps.shape)
    stds[two] = _stds_of_two_scores(scores[two])
    stds[several] = _stds_of_random_groups(scores[several])
    return stds


def _stds_of_two_scores(scores: Array) -> Array:
    """Return the mean std over all groups of each size, for rows with two different scores.

    If i of the n completions of a group have the higher score, the std of the group is the
    difference between the two scores times sqrt(i (n - i)) / n. The result has shape (rows, k - 1).
    """
    k = scores.shape[1]
    highest = scores.max(axis=1, keepdims=True)  # (rows, 1)
    num_highest = (scores == highest).sum(axis=1, keepdims=True)  # (rows, 1)
    means = []
    for size in range(2, k + 1):
        i = np.arange(size + 1)
        probabilities = hypergeom.pmf(i, k, num_highest, size)  # (rows, size + 1)
        stds = np.sqrt(i * (size - i)) / size  # (size + 1,)
        means.append(probabilities @ stds)
    differences = np.ptp(scores, axis=1, keepdims=True)  # (rows, 1)
    return differences * np.stack(means, axis=1)


def _stds_of_random_groups(scores: Array) -> Array:
    """Estimate the mean std of each row's scores in random groups of 2 to k completions.

    The groups are the prefixes of `_ORDERS` random orders of the row. The result has shape
    (rows, k - 1).
    """
    rng = np.random.default_rng(0)
    sizes = np.arange(1, scores.shape[1] + 1)
    centered = scores - scores.mean(axis=1, keepdims=True)
    total = np.zeros(scores.shape)
    for _ in range(_ORDERS):
        order = rng.permuted(centered, axis=1)
        means = order.cumsum(axis=1) / sizes
        squares = (order**2).cumsum(axis=1) / sizes
        variances = np.clip(squares - means**2, 0.0, None)
        total += np.sqrt(variances)
    return total[:, 1:] / _ORDERS
