"""Compare two models by paired differences on the same rows."""

from collections.abc import Sequence
from typing import Any

from grpo_ext.common.estimates import Estimate, mean_difference
from grpo_ext.evaluation.score import (
    OUTCOME,
    Sample,
    by_row,
    length_key,
    problems_of,
    row_means,
    with_outcome,
)


def paired_difference(
    before: list[Sample],
    after: list[Sample],
    name: str | None,
) -> dict[str, Any] | None:
    """Return the mean increase of a reward, or of the length, from `before` to `after`.

    Values are paired by row. Pairing cancels out differences in difficulty between rows.

    Args:
        before: the samples of the first evaluation.
        after: the samples of the second evaluation, of the same rows.
        name: the name of the reward; `None` compares the lengths in tokens.

    Returns:
        A dict with `mean`; `low` and `high`, the bounds of its 95% interval; `verdict` ("rose",
        "fell" or "did not clearly change"); `rows`, the number of rows with a value in both
        evaluations; and `problems`, the number of different problems among them. Bounds and verdict
        are `None` for a single problem. If no row has both values, the result is `None`.
    """
    means_before = row_means(before, name)
    means_after = row_means(after, name)
    means_before, means_after = means_before.align(means_after, join="inner")
    problems = problems_of(before, means_before.index)
    difference = mean_difference(means_before.to_numpy(), means_after.to_numpy(), problems)
    if difference is None:
        return None
    return difference_fields(difference, int((means_after - means_before).count()))


def difference_fields(difference: Estimate, rows: int) -> dict[str, Any]:
    """Convert a difference between two evaluations to the dict that `paired_difference` returns.

    `rows` is the number of rows that the difference was computed from.
    """
    return {
        "mean": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "verdict": difference.verdict,
        "rows": rows,
        "problems": difference.problems,
    }


def compare(
    before: dict[str, list[Sample]],
    after: dict[str, list[Sample]],
    names: list[str],
    outcomes: Sequence[str],
) -> dict[str, Any]:
    """Return the differences in rewards and length between two evaluations of the same rows.

    A reward is left out if no row has a score in both evaluations.

    Args:
        before: the samples of the first evaluation, by part: `greedy` and optionally `sampled`.
        after: the samples of the second evaluation, with the same parts.
        names: the names of the rewards.
        outcomes: the outcome rewards in the order of `outcome_order`; if empty, the result has
            neither `became_right` nor `became_wrong`.

    Returns:
        `{"greedy": {"countdown": {"mean": 0.1, "low": 0.05, "high": 0.15, "verdict": "rose",
        "rows": 189, "problems": 189}, ..., "length": {...}}, "sampled": {...}, "became_right": [3,
        17], "became_wrong": [5]}`. `became_right` lists the numbers of the rows that are solved
        by greedy decoding only in the second evaluation, and `became_wrong` those that are solved
        only in the first. A row is solved if the score of the first outcome reward that scored it
        is 1 or more; a row without a score in one of the evaluations is in neither list.
    """
    differences: dict[str, Any] = {}
    for part in before:
        differences[part] = {}
        for name in [*names, None]:
            difference = paired_difference(before[part], after[part], name)
            if difference is not None:
                key = length_key(names) if name is None else name
                differences[part][key] = difference
    if outcomes:
        old = by_row(with_outcome(before["greedy"], outcomes), OUTCOME)
        new = by_row(with_outcome(after["greedy"], outcomes), OUTCOME)
        scored = old.notna() & new.notna()
        became_right = scored & (new >= 1) & (old < 1)
        became_wrong = scored & (new < 1) & (old >= 1)
        differences["became_right"] = new.index[became_right].tolist()
        differences["became_wrong"] = new.index[became_wrong].tolist()
    return differences
