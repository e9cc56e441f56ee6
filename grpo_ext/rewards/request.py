"""Parse what a question asks for: a noun, unit or kind of amount, and the surrounding words.

For example, "How many bags does Seth fill?" asks for an amount like `14 bags` that Seth fills.
"""

import re
from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

from grpo_ext.rewards.quantity import (
    CURRENCY_SIGNS,
    DECIMAL,
    MULTIPLE,
    WORDED,
    alternation,
    names_of_kind,
    names_of_unit,
)
from grpo_ext.rewards.structure import only

CURRENCY = r"(?:dollars?|cents?|pounds?|euros?|rupees?|yen)\b"
# a number that does not belong to a compound such as 100-meter
AMOUNT = rf"(?<![0-9A-Za-z.,/^])(?![0-9.,/]+-[A-Za-z]{{2}})(?:[0-9]+/[0-9]+|{DECIMAL})"
_MULTIPLE = rf"(?: {MULTIPLE}\b)?"
PRICE = re.compile(rf"[{CURRENCY_SIGNS}]\s?{DECIMAL}{_MULTIPLE}|{AMOUNT}{_MULTIPLE} {CURRENCY}")
PERCENTAGE = re.compile(rf"{AMOUNT} ?(?:\\?%|percent\b)")
WORDED_FRACTION = re.compile(  # two-thirds
    r"(?i)\b(one|two|three|four|five|six|seven|eight|nine)[ -](hal(?=f|ves)|thi(?=rd)|qua(?=rter)"
    r"|fou(?=rth)|fif(?=th)|six(?=th)|sev(?=enth)|eig(?=hth)|nin(?=th)|ten(?=th))[a-z]+\b"
)

_COUNT_OR_MEASURE = re.compile(
    r"\b(?P<count>how many|number of)(?P<nouns>(?:\s+(?:[0-9]+-)?[a-z'-]+){1,4})"
    r"|\bhow (?P<measure>[a-z]+)\b"
    r"|\b(?:what|find|calculate) [^.?$]{0,40}\b(?P<price>cost|price|profit|income|bill)\b"
    r"|\bwhat (?P<percent>percent)(?:age)?\b"
    r"|\b(?:what|which|find|compute) (?:is )?(?:the )?"
    r"(?P<share>fraction|part|portion|probability|chance)\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\b(?:find|what (?:is|are|was)|determine|calculate|who|which (?:of|[a-z]+ (?:is|was|has|had)))"
    r"\b[^.?]*",
    re.IGNORECASE,
)
_KINDS = {
    "old": ("calendar", "time"),
    "long": ("calendar", "time", "length"),
    "far": ("length",),
    "tall": ("length",),
    "high": ("length",),
    "wide": ("length",),
    "deep": ("length",),
    "heavy": ("mass",),
}
_MONEY = re.compile(rf"[{CURRENCY_SIGNS}]|\b{CURRENCY}")
_MONEY_NOUNS = {"dollar", "money", "cent"}
_NOUN_ENDS = re.compile(
    r"\s(?:do|does|did|are|is|was|were|will|would|can|could|has|have|had|must|should|that|of|in"
    r"|on|at|per|each|to|for|with|he|she|they|it|there|you|we|i)\b",
    re.IGNORECASE,
)
_LEADING_VERB = re.compile(r"^ (?:are|is|were|was) ")
_PLURAL = re.compile(r"(?<=[a-z]{3})(?:ies|y|es|s)$")  # "pies" -> "pie"; "cities", "city" -> "cit"
_NOT_NOUNS = {"more", "total", "different", "whole", "fewer", "less", "other", "additional"}
_BETWEEN = r"(?:[ -](?!(?:and|or|of|in|for|with|per|than|to|is|are)\b)[A-Za-z']+){0,2}?"
CAPITALIZED = re.compile(r"\b[A-Z][a-z]+\b")
_NAME = re.compile(rf"(?<=[a-z,] ){CAPITALIZED.pattern}")
_SUBORDINATE = re.compile(r"\b(?:if|when|while|than|who|as)\b")
_LETTER = re.compile(r"\b(?:find|values? of|solve for|what is|which|real|all) \$?([a-z])\b")
_WORD = re.compile(
    r"\b(?!(?:the|and|how|many|much|what|each|will|does|have|there|they)\b)[a-z]{3,}\b"
)
NEGATION = re.compile(r"\bnot\b|n't\b")
_DIFFERENCE = re.compile(
    r"\bhow (?:many|much) (?:[a-z]+ )?(?:more|less|fewer|[a-z]+er)\b|\bdifference\b", re.IGNORECASE
)
_MINIMUM = re.compile(r"\b(?:minimum|at least|least|fewest|smallest)\b")
_MAXIMUM = re.compile(r"\b(?:maximum|at most|most|largest|greatest)\b")
_VERB_FIRST = (
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|must)(?:n't)?"
)
_YES_OR_NO = re.compile(
    rf"(?:^|[.:,?!\n]\s*){_VERB_FIRST} [^.?\n]{{1,300}}\?|\b(?:whether|yes or no|true or false)\b",
    re.IGNORECASE,
)
_ALTERNATIVES = re.compile(r"\b([a-z]{3,}(?:, [a-z]{3,}){0,5},? or [a-z]{3,})\?")
_SEPARATOR = re.compile(r",? or |, ")
_PER = re.compile(r"\b(?:per|each|every)\b")


class Request(NamedTuple):
    """What a question asks for; the defaults mean that nothing is known."""

    amount: re.Pattern[str] | None = None  # matches `14 bags` for "how many bags"
    name: str | None = None  # the only name in the main clause of the request
    text: str = ""  # the question in lower case, without punctuation
    names: frozenset[str] = frozenset()  # capitalized words of the question
    numbers: frozenset[Fraction] = frozenset()  # the numbers that the question states
    letters: frozenset[str] = frozenset()  # unknowns whose values it asks for
    nouns: frozenset[str] = frozenset()  # stems: "red", "balloon" for "how many red balloons"
    words: frozenset[str] = frozenset()  # stems of the words of the request
    negated: bool = False  # "how many are not red"
    is_rate: bool = False  # "how many miles per day"
    is_difference: bool = False  # "how many more miles"
    is_yes_or_no: bool = False  # "is 7 prime"
    alternatives: tuple[str, ...] = ()  # "acute", "right" for "is it acute or right?"
    bound: str | None = None  # "at least" for "the minimum number of rides"

    def states(self, phrase: str) -> bool:
        """Return whether the question contains a phrase as whole words, ignoring case."""
        return f" {words_in_lower_case(phrase)} " in f" {self.text} "


def words_in_lower_case(text: str) -> str:
    """Return `text` in lower case, with single spaces and without punctuation around words."""
    return " ".join(word.strip(".,;:?!*") for word in text.lower().split())


def request_of(question: str, numbers: frozenset[Fraction]) -> Request:
    """Parse the last request in a question; `numbers` are the numbers that the question states."""
    letters = frozenset(_LETTER.findall(question))
    matches = list(_COUNT_OR_MEASURE.finditer(question))
    if not matches:
        requests = ["", *_REQUEST.findall(question)]
        return Request(
            text=words_in_lower_case(question),
            names=frozenset(CAPITALIZED.findall(question)),
            numbers=numbers,
            letters=letters,
            words=words_of(requests[-1]),
            is_difference=_DIFFERENCE.search(question) is not None,
            is_yes_or_no=_YES_OR_NO.search(question) is not None,
            alternatives=alternatives_of(question),
            bound=bound_of(question),
        )
    request = matches[-1]
    sentence = question[request.start() :].partition("?")[0]
    nouns = requested_nouns(request)
    return Request(
        amount=requested_amount(question, request, nouns),
        name=only({*_NAME.findall(_SUBORDINATE.split(sentence)[0])}),
        text=words_in_lower_case(question),
        names=frozenset(CAPITALIZED.findall(question)),
        numbers=numbers,
        letters=letters,
        nouns=nouns,
        words=words_of(sentence),
        negated=NEGATION.search(sentence) is not None,
        is_rate=_PER.search(sentence) is not None,
        is_difference=_DIFFERENCE.search(question) is not None,
        is_yes_or_no=_YES_OR_NO.search(question) is not None,
        bound=bound_of(question),
    )


def alternatives_of(question: str) -> tuple[str, ...]:
    """Return the last alternatives that a question offers, such as "acute" and "right".

    They stand before a question mark, as in `Is it acute or right?` Return `()` if there are none.
    """
    matches = _ALTERNATIVES.findall(question)
    if not matches:
        return ()
    return tuple(_SEPARATOR.split(matches[-1]))


def bound_of(question: str) -> str | None:
    """Return "at least" if a question asks for a minimum, or "at most" if it asks for a maximum.

    A minimum takes precedence. Return `None` if the question asks for neither.
    """
    if _MINIMUM.search(question):
        return "at least"
    if _MAXIMUM.search(question):
        return "at most"
    return None


def words_of(text: str) -> frozenset[str]:
    """Return the stems of the lower-case words in `text`, except short and very common words."""
    return frozenset(_PLURAL.sub("", word) for word in _WORD.findall(text))


def requested_nouns(request: re.Match[str]) -> frozenset[str]:
    """Return the stems of the nouns that a question asks to count: "bag" for "how many bags".

    `request` is a match of `_COUNT_OR_MEASURE` in the question.
    """
    phrase = _LEADING_VERB.sub("", request["nouns"] or "")
    nouns = set()
    for word in _NOUN_ENDS.split(f"{phrase} ")[0].split():
        if len(word) > 2 and word not in _NOT_NOUNS and not word[0].isdecimal():
            nouns.add(_PLURAL.sub("", word))
    return frozenset(nouns)


def requested_amount(
    question: str, request: re.Match[str], nouns: frozenset[str]
) -> re.Pattern[str] | None:
    """Return a pattern for the amounts that the question asks for; `None` if their kind is unknown.

    Args:
        question: the question.
        request: a match of `_COUNT_OR_MEASURE` in the question.
        nouns: the stems of the counted nouns, from `requested_nouns`.
    """
    if request["share"]:
        return WORDED_FRACTION
    if request["percent"]:
        return PERCENTAGE
    if request["measure"] in _KINDS:
        return amount_of(names_of_kind(_KINDS[request["measure"]]))
    if request["count"] and not nouns & _MONEY_NOUNS:
        return amount_of(nouns)
    if request["measure"] in (None, "much") and _MONEY.search(question):
        return PRICE
    return None


def amount_of(nouns: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern for a number followed by one of the nouns, as in `14 small bags`.

    Up to two words may come between the number and the noun. For a noun that is the name of a unit,
    the unit's other names match as well. Return `None` if there are no nouns, or if each of them
    has at most two letters and is not a unit.
    """
    stems = [re.escape(_PLURAL.sub("", noun)) for noun in nouns if len(noun) > 2]
    units: set[str] = set()
    for noun in nouns:
        units |= names_of_unit(noun) | names_of_unit(f"{noun}s")
    endings = []
    if stems:
        endings.append(rf"{_BETWEEN} (?:{'|'.join(stems)})[a-z]{{0,3}}\b")
    if units:
        endings.append(rf"\s?(?:{alternation(units)})(?![A-Za-z])")
    if not endings:
        return None
    return re.compile(rf"(?:{AMOUNT}{_MULTIPLE}|\b{WORDED}|\ba dozen)(?:{'|'.join(endings)})")
