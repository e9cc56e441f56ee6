"""Recognize which arrangement of answers a question asks for, and convert answers to it.

The arrangement says whether `(1, 2)` is an interval or a tuple, whether the order of values
matters, and whether subscripts matter.
"""

import re

from grpo_ext.rewards.regions import region
from grpo_ext.rewards.structure import (
    Collection,
    alternatives,
    brackets,
    collection,
    is_tuple,
    split,
)

_INTERVAL = re.compile(
    r"\b(?:intervals?|inequalit(?:y|ies)|domain|range|(?:in|de)creasing on)\b|[<>≤≥]"
    r"|\\(?:le|ge|lt|gt)(?:q|qslant)?(?![A-Za-z])|\b(?i:all) (?:real )?(?:numbers |values of "
    r")?\$?[a-z]\b",
    re.IGNORECASE,
)
_TUPLE = re.compile(
    r"\b(?:points?|coordinates?|ordered|pairs?|triples?|tuples?|(?:eigen)?vectors?|lists?"
    r"|vert(?:ex|ices)|cent(?:er|re)"
    r"|focus|foci|intersections?|intersect|systems?|sequence|array|row|column)\b"
    r"|\([A-Za-z],\s?\\?[A-Za-z]+\)",
    re.IGNORECASE,
)
_LOW = r"(?:least|smallest|lowest|shortest|slowest|lightest|youngest|earliest|coldest)"
_HIGH = (
    r"(?:greatest|largest|biggest|highest|longest|tallest|fastest|heaviest|oldest|latest|hottest"
    r"|most)"
)
_VERB = r"(?:arrange|sort|rank|(?<!in )order(?! (?:to|of)\b))"
_ANSWERS = r"(?:your|the|all|all the) (?:[a-z]+ )?(?:answers?|solutions?|roots?)\b"
_CHARACTER = r"(?:[^.?]|\.(?=[0-9]))"  # inside a sentence, which the point in 1.7 does not end
_ORDER = re.compile(
    rf"\b(?:{_VERB}|put|place|list|write)\b(?! {_ANSWERS}){_CHARACTER}{{0,120}}?"
    r"\b(?:in|into|by) (?!any|no\b)(?:[a-z]+ ){0,3}order\b(?! (?:to|that)\b)"
    rf"|\b{_VERB}\b{_CHARACTER}{{0,120}}?\bby (?:[a-z]+ )?(?:size|value)\b"
    rf"|\b(?:{_VERB}|put)\b{_CHARACTER}{{0,40}}?(?:\bfrom\b|:)"
    rf"|\b{_LOW} to (?:the )?{_HIGH}\b|\b{_HIGH} to (?:the )?(?:{_LOW}|fewest)\b"
    rf"|\b(?:{_LOW}|{_HIGH}|smaller|larger) first\b|\bin (?:what|which) order\b"
    r"|\b(?:what|which|find|determine|give) (?:is )?the (?:[a-z]+ )?order(?:ing)? of\b"
    rf"{_CHARACTER}{{0,160}}?"
    r"\bin (?:in|de|a)(?:creasing|scending) order\b"
    r"|(?:^|[.:?!\n]\s*|\bplease )(?:sort|arrange|rank|order)\s+(?:(?:the|these|following)\s)*"
    r"(?:numbers|fractions|decimals|values|expressions|quantities|[\\$0-9(-])",
    re.IGNORECASE,
)
_RELATIONS = re.compile(r"\s*(?:[<>]|\\[lg]e(?![A-Za-z]))\s*")
_INDEXED = re.compile(r"(\\[A-Za-z]+|[A-Za-z]) ?_")
_NUMBERED = re.compile(r"(\\[A-Za-z]+|[A-Za-z]) ?_(?:[0-9]|\{ ?[0-9] ?\})")
_CLOSED = re.compile(r"\[|\]|\\infty")


def arrangement_of(text: str) -> str | None:
    """Return "interval" or "tuple" if a question says what `(1, 2)` means, else `None`.

    A question with words for both, such as "points" and "domain", counts as "tuple".
    """
    if _TUPLE.search(text):
        return "tuple"
    if _INTERVAL.search(text):
        return "interval"
    return None


def asks_for_order(text: str) -> bool:
    """Return whether a question asks to put values in order."""
    return _ORDER.search(text) is not None


def indexed_symbols(text: str) -> frozenset[str]:
    r"""Return the symbols that have a subscript in a question: `a` for `a_1` and `a_n`."""
    return frozenset(_INDEXED.findall(text))


def is_list_for_interval(arrangement: str | None, gold: str, answer: str) -> bool:
    r"""Return whether one answer is an interval and the other a list, such as the interval's ends.

    Only the forms of the answers are compared, not their values. `[0, 2]`, `[0, 2)` and
    `(0, \infty)` count as intervals unless the question asks for a tuple, whereas `(0, 2)` counts
    as a point unless the question asks for an interval. If the list assigns all of its values to
    one unknown, as in `x = 0, x = 2`, all of these, including `(0, 2)`, count as intervals.

    Return `False` if the list contains an interval or an inequality, or if the question asks for an
    interval and the list has several unknowns, as in `x = 0, y = 2`.

    Args:
        arrangement: the result of `arrangement_of` for the question.
        gold: the gold answer.
        answer: the answer to compare with it.
    """
    pairs = []
    lists = []
    for side in (collection(gold), collection(answer)):
        if is_tuple(side) and len(side.parts) == 2:
            pairs.append(side)
        elif side.kind in ("list", "ordered", "set"):
            lists.append(side)
    if len(pairs) != 1 or len(lists) != 1:
        return False
    ends = lists[0]
    if any(region(part) is not None for part in ends.parts):
        return False  # `-3 < x < -1, or (-3, -1)` gives the interval twice
    if ends.kind == "list" and has_one_unknown(ends):
        return True
    if arrangement is not None:
        return arrangement == "interval" and len(ends.names) < 2
    enclosed = " ".join((pairs[0].kind, *pairs[0].parts))
    return _CLOSED.search(enclosed) is not None


def has_one_unknown(values: Collection) -> bool:
    """Return whether a list assigns all of its values to one unknown, as in `x = 0, x = 2`.

    The unknown must begin with a lower-case letter or a backslash.
    """
    return len(values.names) == 1 and values.names[0][0] in r"\abcdefghijklmnopqrstuvwxyz"


def in_order(gold: str, answer: str) -> tuple[str, str]:
    r"""Return (gold, answer) as tuples, so that the order of their values matters.

    `2 < 3 < 5`, `2, 3, 5` and `\{2, 3, 5\}` all become `(2, 3, 5)`. If either answer has fewer than
    two values, both are returned unchanged.
    """
    tuples = []
    for text in (gold, answer):
        values = ", ".join(split(without_brackets(text), _RELATIONS))
        if len(alternatives(values)) < 2:
            return gold, answer
        tuples.append(f"({values})")
    return tuples[0], tuples[1]


def without_brackets(text: str) -> str:
    enclosed = brackets(text)
    if enclosed is None:
        return text
    return enclosed[1]


def without_own_indices(indexed: frozenset[str], gold: str, answer: str) -> str:
    r"""Remove subscripted names that only the answer uses, so that the order of values is ignored.

    For example, return `3, 1` for `\lambda_1 = 3, \lambda_2 = 1`. The answer is returned unchanged
    unless it has at least two names, all of which are the same symbol with a digit as its
    subscript. It is also returned unchanged if the question uses this symbol with subscripts, if
    the gold answer is not an unordered list or a set, or if the gold answer contains a name other
    than the symbol itself.

    Args:
        indexed: the symbols with subscripts in the question (see `indexed_symbols`).
        gold: the gold answer.
        answer: the answer to compare with it.
    """
    actual = collection(answer)
    symbols = set()
    for name in actual.names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            return answer
        symbols.add(numbered[1])
    if len(actual.names) < 2 or len(symbols) != 1 or symbols & indexed:
        return answer
    expected = collection(gold)
    if expected.kind not in ("list", "set") or not symbols.issuperset(expected.names):
        return answer
    return ", ".join(actual.parts)
