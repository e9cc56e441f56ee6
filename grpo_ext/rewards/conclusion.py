r"""Ends the last sentence of a completion behind the value that answers the question.

A reader who knows the question skips what follows: in `She fills 14 bags with 2 lollipops each.`,
14 answers "how many bags". docs/rewards.md has the rules.
"""

import re
from collections.abc import Collection
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from grpo_ext.rewards.quantity import (
    DECIMAL,
    UNIT_NAMES,
    WORDED,
    names_of_kind,
    names_of_unit,
    number,
    with_digits,
)

_SENTENCE_END = re.compile(r"[.!?](?:\s+|$)|\n+")
_ASKED = re.compile(
    r"\b(?P<count>how many|number of)(?P<nouns>(?:\s+[a-z'-]+){1,4})|\bhow (?P<measure>[a-z]+)\b"
    r"|\b(?:what|find|calculate) [^.?$]{0,40}\b(?P<price>cost|price|profit|income|bill)\b"
    r"|\bwhat (?P<percent>percent)(?:age)?\b"
    r"|\b(?:what|which|find|compute) (?:is )?(?:the )?(?P<share>fraction|part|portion|probability|chance)\b",
    re.IGNORECASE,
)
_MEASURES = {
    "old": ("calendar", "time"),
    "long": ("calendar", "time", "length"),
    "far": ("length",),
    "tall": ("length",),
    "high": ("length",),
    "wide": ("length",),
    "deep": ("length",),
    "heavy": ("mass",),
}
_MONEY = re.compile(r"[$£€]|\b(?:dollars?|cents?|pounds?|euros?)\b")
_ASKED_IN = re.compile(rf"\bin\s+\$?({UNIT_NAMES})(?![A-Za-z/^])")
_NOUN_ENDS = re.compile(
    r"\s(?:do|does|did|are|is|was|were|will|would|can|could|has|have|had|must|should|that|of|in"
    r"|on|at|per|each|to|for|with|he|she|they|it|there|you|we|i)\b",
    re.IGNORECASE,
)
_LEADING_VERB = re.compile(r"^ (?:are|is|were|was) ")
_ENDING = re.compile(r"(?:ies|y|es|s)$")
_NOT = re.compile(r"\bnot\b|n't\b")
_NO_NOUNS = {"more", "total", "different", "whole", "fewer", "less", "other", "additional"}
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+\b")
_AMOUNT = rf"(?<![0-9A-Za-z.,/])(?:[0-9]+/[0-9]+|{DECIMAL})"
_VALUE = re.compile(rf"\\?[$£€]?\s?({_AMOUNT})")
_PRICE = re.compile(rf"[$£€]\s?{DECIMAL}|{_AMOUNT} (?:dollars?|cents?|pounds?|euros?)\b")
_PERCENTAGE = re.compile(rf"{_AMOUNT} ?(?:\\?%|percent\b)")
_NOUN = re.compile(
    r"(?:st|nd|rd|th|\s?%)?(?:\s?[ap]\.?m\b|:[0-9]{2}"
    r"|[ -](?!(?:and|or|of|in|is|was|are|were|as|at|by|if|to|so|then|left|more|less|remain"
    r"|altogether|total|instead|each|will|have|has|had|can|come|comes|[a-z]+ed|[a-z]+ing)\b)[A-Za-z]{2,})"
)
_NEW_CLAIM = re.compile(
    r"[=≈]|\\approx|\b(?:or|not|no|so|thus|hence|therefore|wait|actually|but|however|maybe|perhaps"
    r"|possibly|which|i\.e|total|altogether)\b",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"\b(?i:find|what (?:is|are|was)) (?:the|its|their|his|her) ([a-z]{4,})\b[^$]*[.?]"
)
_CLAUSE_OF_THING = re.compile(r",? (?:and|while|whereas|but) (?=(?:the|its|their|his|her) )")
_CLAUSE_OF_PERSON = re.compile(
    r",? (?:and|while|whereas|but) (?=[A-Z][a-z])|, (?=[A-Z][a-z]+ (?!=))"
)
_PHRASE = re.compile(r"[0-9.,/]*[^0-9,.;]*")
_REASON = re.compile(r"(?:,? (?:of which|of whom|including)|(?<! and),? (?:since|because))\b[^,]*$")
_WORD_AT_END = re.compile(rf"(?<=\b(?:is|to) )(?<!at )({WORDED})(?=[.!\s]*$)")
_INVERTED = re.compile(
    r"(?:^|[,:] |\b(?i:so|and|thus|therefore|hence) )\$?([0-9][0-9.,/]*)\$? (?:is|are) (?:also )?(?:the|one|an?)\b"
)
_ALTERNATIVE = re.compile(r"[0-9] [a-z][^.!?]{0,40}\bor (?=[-0-9.+*/×=() $]*$)")
_REMARK = re.compile(
    r"\s\([^()]{0,200}?(?<![\\A-Za-z])[A-Za-z]{2}[^()]{0,200}\)"
    r"|(?<=[0-9a-z%])\s\([^(),]{1,200}[-+*/=×][^(),]{1,200}\)(?=[.\s]*$)"
)
_CALCULATOR = re.compile(r"<<[^<>]{0,100}>>")
_CIRCUMSTANCE = re.compile(
    r"(?i),? (?:(?:after|before|during|in|for|with|from|at|by|on|per|over|within|than|between|among"
    r"|when|if|besides|through|until|since|addition to|(?<=ways )to)(?! an? )(?: [A-Za-z'-]+){0,3}"
    r"|(?:out )?of(?= (?:the|his|her|its|their|all|those|these)\b)(?: [A-Za-z'-]+){1,3}) ?$"
)
_OF_FIRST = re.compile(r"(?:^|[,;]) (?:out )?of (?:[a-z]+ )?$", re.IGNORECASE)
_OF_WHOLE = re.compile(rf"^ of (?:[a-z]+ )?{_AMOUNT}")
_OR_ABOUT = re.compile(rf"({_AMOUNT}),? or (?:about|approximately|roughly) ({_AMOUNT})")
_DEFINITE = re.compile(r"\b(?:the|his|her|its|their|all|those|these) $")
_CONDITION = re.compile(r",? (?:at|when|for|where|if) \$?([a-z]) ?= ?[^\s,$]+\$?[.\s]*$")
_LETTER = re.compile(r"\b(?:find|values? of|solve for|what is|which|real|all) \$?([a-z])\b")
_FRACTION = re.compile(
    r"\b(one|two|three|four|five|six|seven|eight|nine)[ -](hal(?=f|ves)|thi(?=rd)|qua(?=rter)"
    r"|fou(?=rth)|fif(?=th)|six(?=th)|sev(?=enth)|eig(?=hth)|nin(?=th)|ten(?=th))[a-z]+\b"
)
_DENOMINATORS = dict(hal=2, thi=3, qua=4, fou=4, fif=5, six=6, sev=7, eig=8, nin=9, ten=10)
_APPROXIMATION = re.compile(
    rf"(?<=[0-9)}}$%]),? (?:which is )?(?:about|approximately|roughly) \\?[$£€]?{_AMOUNT}\$?"
    r"(?: [a-z]+){0,3}[.\s]*$"
)
_AND = re.compile(r"\band (?:then|so|hence|thus|therefore|thereby)\b(?= \$?[a-z] ?=)")


class Asked(NamedTuple):
    """What a question asks for, and what it says of it."""

    amount: re.Pattern[str] | None = None  # `14 bags` for "how many bags", prices for "how much"
    subject: str | None = (
        None  # the only name in the sentence that asks, or `width` for "its width"
    )
    numbers: frozenset[Fraction] = frozenset()  # that the question states
    letters: frozenset[str] = frozenset()  # the unknowns whose values it asks for
    nouns: frozenset[str] = frozenset()  # "red", "balloon" for "how many red balloons"
    negated: bool = False  # "how many are not red"


def asked_of(question: str, numbers: frozenset[Fraction]) -> Asked:
    """Read what a question asks for."""
    letters = frozenset(_LETTER.findall(question))
    asked = list(_ASKED.finditer(question))
    if not asked:
        units = {*_ASKED_IN.findall(question)}
        amount = amount_of(units) if units else None
        return Asked(amount, only({*_SUBJECT.findall(question)}), numbers, letters)
    sentence = question[asked[-1].start() :].partition("?")[0]
    nouns = asked_nouns(asked[-1])
    subject = only({*_NAME.findall(sentence)}) or only(nouns)
    amount = asked_amount(question, asked[-1], nouns)
    return Asked(amount, subject, numbers, letters, nouns, _NOT.search(sentence) is not None)


def only(words: Collection[str]) -> str | None:
    return next(iter(words)) if len(words) == 1 else None


def asked_nouns(asked: re.Match[str]) -> frozenset[str]:
    """Return the words for what a question counts, without their endings."""
    counted = _NOUN_ENDS.split(f"{_LEADING_VERB.sub('', asked['nouns'] or '')} ")[0].split()
    words = {noun for noun in counted if len(noun) > 2} - _NO_NOUNS
    return frozenset(_ENDING.sub("", word) for word in words)


def asked_amount(
    question: str, asked: re.Match[str], nouns: frozenset[str]
) -> re.Pattern[str] | None:
    if asked["share"]:
        return _FRACTION
    if asked["percent"]:
        return _PERCENTAGE
    if asked["measure"] in _MEASURES:
        return amount_of(names_of_kind(_MEASURES[asked["measure"]]))
    if asked["count"] and not nouns & {"dollar", "money", "cent"}:
        return amount_of(nouns) if nouns else None
    is_money = asked["measure"] in (None, "much") and _MONEY.search(question)
    return _PRICE if is_money else None


def amount_of(nouns: Collection[str]) -> re.Pattern[str]:
    """Return the pattern of a number with one of the nouns, or another name of the same unit,
    behind it.
    """
    stems = [re.escape(_ENDING.sub("", noun)) for noun in nouns if len(noun) > 2]
    units = [
        re.escape(name)
        for noun in nouns
        for name in names_of_unit(noun) | names_of_unit(f"{noun}s")
    ]
    between = r"(?:[ -](?!(?:and|or|of|in|for|with|per|than|to|is|are)\b)[A-Za-z']+){0,2}?"
    endings = [rf"{between} (?:{'|'.join(stems)})[a-z]{{0,3}}\b"] if stems else []
    endings += [rf"\s?(?:{'|'.join(units)})(?![A-Za-z])"] if units else []
    return re.compile(rf"(?:{_AMOUNT}|\b{WORDED}|\ba dozen)(?:{'|'.join(endings)})")


def with_conclusion(text: str, asked: Asked) -> str:
    """Return a text whose last sentence with a value ends behind the value that was asked for.

    Amounts of what was asked for are written in digits.
    """
    text = _WORD_AT_END.sub(lambda match: with_digits(match[0]), without_remarks(text))
    start, end = last_sentence(text, asked)
    sentence = text[start:end]
    sentence = _OR_ABOUT.sub(lambda match: match[1 if rounds(match[2], match[1]) else 0], sentence)
    sentence = own_clause(_AND.sub("and", sentence), asked.subject)
    if asked.negated:
        sentence = _NOT.sub("", sentence)
    for aside in (_APPROXIMATION, _REASON, _CONDITION):
        sentence = without_aside(sentence, aside, asked.letters)
    claim = _INVERTED.search(sentence)
    if claim is not None and are_stated(_VALUE.findall(sentence, claim.end(1)), asked.numbers):
        sentence = sentence[: claim.end(1)]
    sentence = in_asked_amounts(sentence, asked)
    return text[:start] + without_circumstances(sentence, asked.numbers) + text[end:]


def without_remarks(text: str) -> str:
    """Remove remarks in brackets and the annotations of GSM8K's calculator."""
    return _REMARK.sub("", _CALCULATOR.sub("", text))


def rounds(decimal: str, exact: str) -> bool:
    """Whether a decimal is an exact value, rounded or cut off."""
    rounded = number(decimal)
    value = number(exact)
    if rounded is None or value is None or value.place:
        return False
    return abs(rounded.value - value.value) < rounded.place


def own_clause(sentence: str, subject: str | None) -> str:
    """Return a sentence up to the end of the only clause with the subject of the question."""
    if subject is None:
        return sentence
    clause_end = _CLAUSE_OF_PERSON if subject[0].isupper() else _CLAUSE_OF_THING
    ends = [match.start() for match in clause_end.finditer(sentence)]
    clauses = [sentence[start:end] for start, end in pairwise([0, *ends, len(sentence)])]
    own = [n for n, clause in enumerate(clauses) if subject in clause]
    if len(own) != 1 or own[0] == len(clauses) - 1 or not _VALUE.search(clauses[own[0]]):
        return sentence
    behind = ends[own[0]]
    return sentence if _NEW_CLAIM.search(sentence, behind) else sentence[:behind]


def without_aside(sentence: str, aside: re.Pattern[str], letters: frozenset[str]) -> str:
    """Remove an aside from the end of a sentence, if a value stands before it."""
    match = aside.search(sentence)
    if match is None or not _VALUE.search(sentence, 0, match.start()):
        return sentence
    is_asked = aside is _CONDITION and match[1] in letters
    return sentence if is_asked else sentence[: match.start()]


def in_asked_amounts(sentence: str, asked: Asked) -> str:
    """End a sentence behind the last amount of what was asked for, unless it claims another value
    there, and write this amount in digits. An alternative before it in another unit is removed.
    """
    if asked.amount is None:
        return sentence
    amounts = [
        amount
        for amount in asked.amount.finditer(sentence)
        if not is_circumstance(sentence, amount, asked.numbers)
    ]
    if not amounts:
        return sentence
    precise = [match for match in amounts if has_nouns(sentence, match.start(), asked.nouns)]
    amount = (precise or amounts)[-1]
    before = sentence[: amount.start()]
    alternative = _ALTERNATIVE.search(before)
    if alternative is not None and not asked.amount.search(before):
        before = before[alternative.end() :]
    behind = sentence[amount.end() :]
    if asked.amount in (_PERCENTAGE, _FRACTION):
        behind = _OF_WHOLE.sub("", behind)
    if not has_claim(behind, asked):
        behind = ""
    return before + in_digits(amount[0]) + behind


def has_nouns(sentence: str, start: int, nouns: frozenset[str]) -> bool:
    """Whether all nouns that are asked for stand behind a number, before the next one."""
    phrase = _PHRASE.match(sentence, start)
    return phrase is not None and all(noun in phrase[0] for noun in nouns)


def is_circumstance(sentence: str, amount: re.Match[str], numbers: frozenset[Fraction]) -> bool:
    """Whether an amount is known before: behind a preposition, a number of the question or one with
    "the", "his" and the like: `Of the 28 pies, `
    """
    value = _VALUE.search(amount[0])
    before = f" {sentence[: amount.start()]}"
    if value is None or not (_OF_FIRST.search(before) or _CIRCUMSTANCE.search(before)):
        return False
    return are_stated([value[1]], numbers) or _DEFINITE.search(before) is not None


def last_sentence(text: str, asked: Asked) -> tuple[int, int]:
    """Return where the last sentence with a digit or an amount in words begins and ends."""
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    for start, end in reversed(list(pairwise(ends))):
        is_amount = asked.amount is not None and asked.amount.search(text, start, end) is not None
        if is_amount or _VALUE.search(text, start, end):
            return start, end
    return 0, len(text)


def has_claim(behind: str, asked: Asked) -> bool:
    """Whether the end of a sentence claims another value: one without a noun, or behind "or",
    "not", "so" and the like.
    """
    if _NEW_CLAIM.search(behind):
        return True
    is_money = asked.amount is _PRICE
    return not all(
        _NOUN.match(behind, value.end()) or ("$" in value[0] and not is_money)
        for value in _VALUE.finditer(behind)
    )


def without_circumstances(sentence: str, numbers: frozenset[Fraction]) -> str:
    """Cut what ends a sentence with a number of the question behind a preposition, as long as a
    value stands before it.
    """
    values = list(_VALUE.finditer(sentence))
    while len(values) > 1:
        value = values.pop()
        circumstance = _CIRCUMSTANCE.search(sentence[: value.start()])
        before = sentence[: value.start()]
        is_known = are_stated([value[1]], numbers) or _DEFINITE.search(before) is not None
        if circumstance is None or not is_known or _NEW_CLAIM.search(sentence, value.end()):
            break
        sentence = sentence[: circumstance.start()]
    return sentence


def are_stated(values: list[str], numbers: frozenset[Fraction]) -> bool:
    """Whether all of some integers and decimals are numbers of the question."""
    digits = [value.replace(",", "").replace(" ", "") for value in values]
    return all("/" not in value and Fraction(value) in numbers for value in digits)


def in_digits(amount: str) -> str:
    fraction = _FRACTION.fullmatch(amount)
    if fraction is not None:
        return f"{with_digits(fraction[1])}/{_DENOMINATORS[fraction[2]]}"
    return with_digits(amount.replace("a dozen", "12"))
