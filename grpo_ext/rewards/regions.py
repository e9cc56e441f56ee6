r"""Regions of numbers in answers: intervals, their unions, and inequalities in one unknown."""

import re
from collections.abc import Callable
from typing import NamedTuple

from grpo_ext.rewards.structure import (
    COMMA,
    MEMBER,
    Chain,
    Collection,
    brackets,
    chain,
    is_name,
    is_tuple,
    split,
    without_builder,
)

_UNION = re.compile(r"\\cup(?![A-Za-z])")
Same = Callable[[str, str], bool]  # returns whether two parts of answers are equal


class Interval(NamedTuple):
    """An interval; `has_low` and `has_high` say whether the ends `low` and `high` belong to it."""

    low: str
    high: str
    has_low: bool
    has_high: bool


class Region(NamedTuple):
    """A union of intervals, and the name of the unknown in it, or `None` if there is no name."""

    name: str | None
    intervals: tuple[Interval, ...]


def region(text: str) -> Region | None:
    r"""Parse an interval, a union of intervals or an inequality; return `None` for other answers.

    `(1, 2)` is parsed as an interval, although it may also be a point; the caller must tell the two
    apart. A name may come first, as in `x \in [1, 2)`.
    """
    text = without_builder(text)
    members = split(text, MEMBER)
    if len(members) == 2 and is_name(members[0]):
        inner = region(members[1])
        return inner and Region(members[0], inner.intervals)
    intervals = []
    for member in split(text, _UNION):
        read = interval(member)
        if read is None:
            return inequality(chain(text))
        intervals.append(read)
    return Region(None, tuple(intervals))


def interval(text: str) -> Interval | None:
    """Parse an interval such as `[1, 2)`; return `None` for any other text."""
    enclosed = brackets(text)
    if enclosed is None:
        return None
    opening, content, closing = enclosed
    if opening not in ("(", "[") or closing not in (")", "]"):
        return None
    ends = split(content, COMMA)
    if len(ends) != 2:
        return None
    return Interval(ends[0], ends[1], has_low=opening == "[", has_high=closing == "]")


def inequality(relation: Chain) -> Region | None:
    r"""Convert an inequality in one unknown, such as `1 < x \le 2` or `x \ne 2`, to a region.

    Return `None` for any other chain.
    """
    sides, operators = relation
    closed = [operator == r"\le" for operator in operators]
    if len(sides) == 2 and operators == (r"\ne",) and is_name(sides[0]):
        below = Interval(r"-\infty", sides[1], has_low=False, has_high=False)
        above = Interval(sides[1], r"\infty", has_low=False, has_high=False)
        return Region(sides[0], (below, above))
    if not operators or not all(operator in ("<", r"\le") for operator in operators):
        return None
    named = [is_name(side) for side in sides]
    if named == [True, False]:
        below = Interval(r"-\infty", sides[1], has_low=False, has_high=closed[0])
        return Region(sides[0], (below,))
    if named == [False, True]:
        above = Interval(sides[0], r"\infty", has_low=closed[0], has_high=False)
        return Region(sides[1], (above,))
    if named == [False, True, False]:
        between = Interval(sides[0], sides[2], has_low=closed[0], has_high=closed[1])
        return Region(sides[1], (between,))
    return None


def merged(parts: Collection) -> Region | None:
    """Convert a pair in brackets, or a list of regions of the same unknown, to one region.

    A pair such as `(1, 2)` counts as an interval, even if it is meant as a point. Return `None` for
    anything else, such as a list of points or regions of different unknowns.
    """
    if is_tuple(parts):
        if len(parts.parts) != 2:
            return None
        low, high = parts.parts
        has_low = parts.kind.startswith("[")
        has_high = parts.kind.endswith("]")
        enclosed = Interval(low, high, has_low, has_high)
        return Region(next(iter(parts.names), None), (enclosed,))
    if parts.kind not in ("single", "list"):
        return None
    names = set(parts.names)
    intervals: list[Interval] = []
    for part in parts.parts:
        bounded = region(part)
        if bounded is None:
            return None
        if bounded.name is not None:
            names.add(bounded.name)
        intervals += bounded.intervals
    are_points = len(parts.parts) > 1 and not names  # such as (1,2), (3,4)
    if not intervals or len(names) > 1 or are_points:
        return None
    return Region(next(iter(names), None), tuple(intervals))


def same_region(expected: Region, actual: Region, same: Same) -> bool:
    """Return whether two regions have the same intervals, in any order.

    If both regions name an unknown, the names must be equal as well. The function `same` compares
    ends and names.
    """
    if expected.name and actual.name and not same(expected.name, actual.name):
        return False
    remaining = list(actual.intervals)
    for gold_interval in expected.intervals:
        partner = next((i for i in remaining if same_interval(gold_interval, i, same)), None)
        if partner is None:
            return False
        remaining.remove(partner)
    return not remaining


def same_interval(expected: Interval, actual: Interval, same: Same) -> bool:
    if expected.has_low != actual.has_low:
        return False
    if expected.has_high != actual.has_high:
        return False
    return same(expected.low, actual.low) and same(expected.high, actual.high)
