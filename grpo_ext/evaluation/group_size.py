"""Find the `num_generations` that fits the training prompts, from several completions of each.

A fixed number N of completions a step makes N / G groups. With `scale_rewards: group` the gradient
of a group is

    s (mean over right of grad log p - mean over wrong of grad log p),    s the std of its rewards

for rewards of 0 and 1, and 0 if all are equal. Where prompts pull in different directions, the
noise of the mean over N / G prompts falls with the square root of their number, so signal to noise
goes with

    E[s(G)] / sqrt(G).

Large groups find the rare right completion of a hard prompt, small groups leave room for more
prompts. For prompts of one low pass rate p the best G is about sqrt(2 / p), with little loss up to
twice and down to half of it. Where prompts pull in the same direction, larger groups lose less than
this says.

The plain share of groups with signal per completion, E[1 - p^G - (1-p)^G] / G, cannot choose: it
never grows with G, so that it always names 2.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import hypergeom

from grpo_ext.common.estimates import Array
from grpo_ext.evaluation.score import OUTCOME, Sample, by_row, problems_of, with_outcome

_ORDERS = 1000  # random orders of the completions of a row with more than two different scores
_RESAMPLES = 2000  # of the problems, for the range


@dataclass(frozen=True)
class GroupSize:
    """The best `num_generations` for some rows.

    Args:
        best: the number of completions.
        low, high: the range that it falls into in 95 % of resamples of the problems; `None` for a
            single problem.
        efficiency: by number of completions, from 2 on, signal to noise relative to the best.
    """

    best: int
    low: int | None
    high: int | None
    efficiency: dict[int, float]

    @property
    def largest(self) -> int:
        """The largest number that was compared, that of the completions of each row."""
        return max(self.efficiency)

    def sentence(self, present: int | None) -> str:
        """Return one line for the reader, who trains with `present` completions now."""
        interval = "" if self.low is None else f" (95 % range {self.low} to {self.high})"
        text = f"Best num_generations for these rows: {self.best}{interval}."
        if self.best == self.largest:
            text += f" Larger ones need more samples: --num_samples {2 * self.largest}."
        if present is not None and present != self.best and present in self.efficiency:
            text += (
                f" The recipe's {present} has {self.efficiency[present]:.0%} "
                "of its signal to noise for the same number of completions."
            )
        return text


def advice_on_group_size(size: GroupSize | None, k: int, present: int | None) -> str:
    """Return one line on `num_generations`.

    `size` is that of `best_group_size` for `k` completions of each row, and `present` is the
    recipe's.
    """
    if size is None:
        return (
            f"No num_generations up to {k} gives signal: no row has completions with different "
            "outcome rewards, of which the outcome reward scored all."
        )
    return size.sentence(present)


def best_group_size(samples: list[Sample], outcomes: Sequence[str], k: int) -> GroupSize | None:
    """Return the best number of completions from 2 to `k`; `None` if no row had different rewards.

    Args:
        samples: `k` completions of each row. Rows of which fewer were scored are left out.
        outcomes: the rewards that may judge a row, in the order of `outcome_order`.
        k: the number of completions of each row.
    """
    if k < 2 or not outcomes:
        return None
    scores = by_row(with_outcome(samples, outcomes), OUTCOME).dropna()
    counts = scores.groupby(level=0).size()
    complete_rows = counts.index[counts >= k]
    if complete_rows.empty:
        return None
    table = [scores.loc[row].to_numpy()[:k] for row in complete_rows]
    problems = problems_of(samples, complete_rows)
    return size_of(np.stack(table), problems)


def size_of(scores: Array, problems: Sequence[Hashable]) -> GroupSize | None:
    """Return the best group size for scores (rows, k); `None` if no row has different scores.

    Rows of the same problem are resampled together.
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
    """Return the mean std of the scores in the groups of 2 to k of each row's completions.

    The mean over all groups is exact for a row of two different scores. For a row of more it is one
    over random groups, the beginnings of random orders of the row's completions, which is unbiased.

    Args:
        scores: (rows, k).

    Returns:
        (rows, k - 1); the std is that of a population.
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
    """Return the mean std (rows, k - 1) over all groups of two different scores.

    A group of n with i of the higher score has the difference of both scores times sqrt(i (n -
    i)) / n.
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
    """Return the mean std (rows, k - 1) over the beginnings of random orders."""
    rng = np.random.default_rng(0)
    sizes = np.arange(1, scores.shape[1] + 1)
    centred = scores - scores.mean(axis=1, keepdims=True)
    total = np.zeros(scores.shape)
    for _ in range(_ORDERS):
        order = rng.permuted(centred, axis=1)
        means = order.cumsum(axis=1) / sizes
        squares = (order**2).cumsum(axis=1) / sizes
        variances = np.clip(squares - means**2, 0.0, None)
        total += np.sqrt(variances)
    return total[:, 1:] / _ORDERS
