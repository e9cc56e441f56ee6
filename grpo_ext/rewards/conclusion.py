r"""Cut the last sentence of a completion right after the value that answers the question.

A reader who knows the question ignores what follows: in `She fills 14 bags with 2 lollipops each.`,
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
    alternation,
    names_of_kind,
    names_of_unit,
    number,
    with_digits,
)
from grpo_ext.rewards.structure import only

MAX_DIGITS = 40  # most characters of a number that is compared with the question's numbers
MAX_PHRASE = 80  # characters before a number that are searched for a preposition

_SENTENCE_END = re.compile(r"[.!?](?:\s+|$)|\n+")
_ASKED = re.compile(
    r"\b(?P<count>how many|number of)(?P<nouns>(?:\s+[a-z'-]+){1,4})|\bhow (?P<measure>[a-z]+)\b"
    r"|\b(?:what|find|calculate) [^.?$]{0,40}\b(?P<price>cost|price|profit|income|bill)\b"
    r"|\bwhat (?P<percent>percent)(?:age)?\b"
    r"|\b(?:what|which|find|compute) (?:is )?(?:the )?"
    r"(?P<share>fraction|part|portion|probability|chance)\b",
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
_BETWEEN = r"(?:[ -](?!(?:and|or|of|in|for|with|per|than|to|is|are)\b)[A-Za-z']+){0,2}?"
_VALUE = re.compile(rf"\\?[$£€]?\s?({_AMOUNT})")
_PRICE = re.compile(rf"[$£€]\s?{DECIMAL}|{_AMOUNT} (?:dollars?|cents?|pounds?|euros?)\b")
_PERCENTAGE = re.compile(rf"{_AMOUNT} ?(?:\\?%|percent\b)")
_NOUN = re.compile(
    r"(?:st|nd|rd|th|\s?%)?(?:\s?[ap]\.?m\b|:[0-9]{2}"
    r"| (?:more|less|fewer)(?: [a-z]+)? than\b"
    r"|[ -](?!(?:and|or|of|in|is|was|are|were|as|at|by|if|to|so|then|left|more|less|remain"
    r"|altogether|total|instead|each|will|have|has|had|can|come|comes|[a-z]+ed"
    r"|[a-z]+ing)\b)[A-Za-z]{2,})"
)
_NEW_CLAIM = re.compile(
    r"[=≈]|\\approx|\b(?:or|not|no|so|thus|hence|therefore|wait|actually|but|however|maybe|perhaps"
    r"|possibly|which|i\.e|total|altogether)\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(r"\b(?:find|what (?:is|are|was)|determine|calculate)\b[^.?]*", re.IGNORECASE)
_LONG_WORD = re.compile(r"\b[a-z]{4,}\b")
_THING = re.compile(r",? (?:and|while|whereas|but) (?=(?:the|its|their|his|her) )")
_PERSON = re.compile(r",? (?:and|while|whereas|but) (?=[A-Z][a-z])|, (?=[A-Z][a-z]+ (?!=))")
_PHRASE = re.compile(r"[0-9.,/]*[^0-9,.;]*")
_REASON = re.compile(r"(?:,? (?:of which|of whom|including)|(?<! and),? (?:since|because))\b[^,]*$")
_WORD_AT_END = re.compile(rf"(?<=\b(?:is|to|be) )({WORDED})(?=[.!\s]*$)")
_INVERTED = re.compile(
    r"(?:^|[,:=] |\b(?i:so|and|thus|therefore|hence) )"
    r"\$?([0-9][0-9.,/]*)\$? (?:is|are) (?:also )?(?:the|one|an?)\b"
)
_ALTERNATIVE = re.compile(r"[0-9] [a-z][^.!?]{0,40}\bor (?=[-0-9.+*/×=() $]*$)")
_REMARK = re.compile(
    r"\s\([^()]{0,200}?(?<![\\A-Za-z])[A-Za-z]{2}[^()]{0,200}\)"
    r"|(?<=[0-9a-z%])\s\([^(),]{1,200}[-+*/=×][^(),]{1,200}\)(?=[.\s]*$)"
)
_CALCULATOR = re.compile(r"<<[^<>]{0,100}>>")
_KNOWN_BY = r"(?:the|his|her|its|their|all|those|these)"
_CIRCUMSTANCE = re.compile(
    r"(?i)(?<=[a-z]) out of ?$"
    r"|,? (?:(?:after|before|during|in|for|with|from|at|by|on|per|over|within|than|between|among"
    r"|when|if|besides|through|until|since|addition to|(?<=ways )to)(?! an? )(?: [A-Za-z'-]+){0,3}"
    r"|(?:from|between) [0-9]+ (?:to|and)"
    rf"|(?:out )?of(?= {_KNOWN_BY}\b)(?: [A-Za-z'-]+){{1,3}}) ?$"
)
_OF_FIRST = re.compile(r"(?:^|[,;]) (?:out )?of (?:[a-z]+ )?$", re.IGNORECASE)
_PER = re.compile(r"\b(?:per|each|every)\b")
_RATE = re.compile(r"[a-z]*(?: [a-z]+)? (?:per|each|every)\b")
_OF_WHOLE = re.compile(rf"^ of (?:[a-z]+ )?{_AMOUNT}")
_OR_ABOUT = re.compile(rf"({_AMOUNT}),? or (?:about|approximately|roughly) ({_AMOUNT})")
_CLAUSE_END = re.compile(r"[,;=]|\b(?:which|so|that)\b")
_DEFINITE = re.compile(rf"\b{_KNOWN_BY} $")
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
    """What a question asks for, and the facts that it states."""

    amount: re.Pattern[str] | None = None  # matches `14 bags` for "how many bags"
    name: str | None = None  # the only name in the request
    numbers: frozenset[Fraction] = frozenset()  # those that the question states
    letters: frozenset[str] = frozenset()  # unknowns whose values it asks for
    nouns: frozenset[str] = frozenset()  # "red", "balloon" for "how many red balloons"
    words: frozenset[str] = frozenset()  # words of the request, of 4 letters or more
    negated: bool = False  # "how many are not red"
    is_rate: bool = False  # "how many miles per day"


def asked_of(question: str, numbers: frozenset[Fraction]) -> Asked:
    """Parse what a question asks for; `numbers` are those that it states."""
    letters = frozenset(_LETTER.findall(question))
    counted = list(_ASKED.finditer(question))
    if not counted:
        requests = ["", *_REQUEST.findall(question)]
        return Asked(
            amount=amount_of({*_ASKED_IN.findall(question)}),
            numbers=numbers,
            letters=letters,
            words=frozenset(_LONG_WORD.findall(requests[-1])),
        )
    request = counted[-1]
    sentence = question[request.start() :].partition("?")[0]
    nouns = asked_nouns(request)
    return Asked(
        amount=asked_amount(question, request, nouns),
        name=only({*_NAME.findall(sentence)}),
        numbers=numbers,
        letters=letters,
        nouns=nouns,
        words=frozenset(_LONG_WORD.findall(sentence)),
        negated=_NOT.search(sentence) is not None,
        is_rate=_PER.search(sentence) is not None,
    )


def asked_nouns(request: re.Match[str]) -> frozenset[str]:
    """Return the stems of the nouns that a question counts."""
    phrase = _LEADING_VERB.sub("", request["nouns"] or "")
    nouns = set()
    for word in _NOUN_ENDS.split(f"{phrase} ")[0].split():
        if len(word) > 2 and word not in _NO_NOUNS:
            nouns.add(_ENDING.sub("", word))
    return frozenset(nouns)


def asked_amount(
    question: str, request: re.Match[str], nouns: frozenset[str]
) -> re.Pattern[str] | None:
    """Return a pattern that matches amounts of what the question asks for; `None` if unknown."""
    if request["share"]:
        return _FRACTION
    if request["percent"]:
        return _PERCENTAGE
    if request["measure"] in _MEASURES:
        return amount_of(names_of_kind(_MEASURES[request["measure"]]))
    if request["count"] and not nouns & {"dollar", "money", "cent"}:
        return amount_of(nouns)
    if request["measure"] in (None, "much") and _MONEY.search(question):
        return _PRICE
    return None


def amount_of(nouns: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern for a number followed by one of the nouns or one of their units.

    `None` if no noun can be used: each has at most two letters and is not a unit.
    """
    stems = [re.escape(_ENDING.sub("", noun)) for noun in nouns if len(noun) > 2]
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
    return re.compile(rf"(?:{_AMOUNT}|\b{WORDED}|\ba dozen)(?:{'|'.join(endings)})")


def with_conclusion(text: str, asked: Asked) -> str:
    """Cut the last sentence that has a value right after the value that was asked for.

    The amount that was asked for is written in digits.
    """
    text = _WORD_AT_END.sub(lambda match: with_digits(match[0]), without_remarks(text))
    start, end = last_sentence(text, asked)
    sentence = text[start:end]
    sentence = _OR_ABOUT.sub(lambda match: match[1 if rounds(match[2], match[1]) else 0], sentence)
    sentence = own_clause(_AND.sub("and", sentence), asked)
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
    """Remove remarks in parentheses and GSM8K's calculator annotations (`<<3*4=12>>`)."""
    return _REMARK.sub("", _CALCULATOR.sub("", text))


def rounds(decimal: str, exact: str) -> bool:
    """Return whether `decimal` is the integer or fraction `exact`, rounded or truncated."""
    if max(len(decimal), len(exact)) > MAX_DIGITS:
        return False
    rounded = number(decimal)
    value = number(exact)
    if rounded is None or value is None or value.place:
        return False
    return abs(rounded.value - value.value) < rounded.place


def own_clause(sentence: str, asked: Asked) -> str:
    """Cut a sentence after the one clause that answers the question; else leave it unchanged.

    That is the only clause with the name in the question or, if names do not split the sentence,
    the one whose subject shares the most words with the question.
    """
    clauses = [sentence]
    if asked.name is not None:
        clauses = clauses_of(sentence, _PERSON)
        shared = [int(asked.name in clause) for clause in clauses]
    if len(clauses) == 1:
        clauses = clauses_of(sentence, _THING)
        shared = [len(asked.words & {*_LONG_WORD.findall(subject_of(c))}) for c in clauses]
    position = shared.index(max(shared))
    behind = "".join(clauses[position + 1 :])
    is_single = shared.count(max(shared)) == 1 and _VALUE.search(clauses[position]) is not None
    if not is_single or _NEW_CLAIM.search(behind):
        return sentence
    return sentence.removesuffix(behind)


def clauses_of(sentence: str, start: re.Pattern[str]) -> list[str]:
    """Split a sentence into clauses; each match of `start` begins a new one."""
    starts = [0, *(match.start() for match in start.finditer(sentence)), len(sentence)]
    return [sentence[begin:end] for begin, end in pairwise(starts)]


def subject_of(clause: str) -> str:
    """Return the text before " is " in a clause; "" if there is none."""
    subject, verb, _ = clause.partition(" is ")
    if not verb:
        return ""
    return subject


def without_aside(sentence: str, aside: re.Pattern[str], letters: frozenset[str]) -> str:
    """Remove an aside at the end of a sentence if a value comes before it.

    A condition such as `when x = 3` is kept if the question asks for x.
    """
    match = aside.search(sentence)
    if match is None or not _VALUE.search(sentence, 0, match.start()):
        return sentence
    if aside is _CONDITION and match[1] in letters:
        return sentence
    return sentence[: match.start()]


def in_asked_amounts(sentence: str, asked: Asked) -> str:
    """Cut a sentence after the last amount of what was asked for, and write it in digits.

    The rest of the sentence is kept if it claims another value. An alternative in another unit
    before the amount is removed.
    """
    if asked.amount is None:
        return sentence
    amounts = list(asked.amount.finditer(sentence))
    if not amounts:
        return sentence
    unknown = [a for a in amounts if not is_circumstance(sentence, a, asked.numbers)] or amounts
    precise = [a for a in unknown if has_nouns(sentence, a.start(), asked.nouns)] or unknown
    totals = [a for a in precise if asked.is_rate or not _RATE.match(sentence, a.end())] or precise
    amount = totals[-1]
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
    """Return whether all `nouns` occur between this number and the next."""
    phrase = _PHRASE.match(sentence, start)
    return phrase is not None and all(noun in phrase[0] for noun in nouns)


def is_circumstance(sentence: str, amount: re.Match[str], numbers: frozenset[Fraction]) -> bool:
    """Return whether an amount is known and follows a preposition, as in `Of the 28 pies, ...`.

    The question's numbers count as known, and so does any number after "the", "his" and the like.
    """
    value = _VALUE.search(amount[0])
    before = f" {sentence[: amount.start()]}"[-MAX_PHRASE:]
    if value is None or not (_OF_FIRST.search(before) or _CIRCUMSTANCE.search(before)):
        return False
    return are_stated([value[1]], numbers) or _DEFINITE.search(before) is not None


def last_sentence(text: str, asked: Asked) -> tuple[int, int]:
    """Return (start, end) of the last sentence with a number or amount; else of the whole text."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    values = [_VALUE] if asked.amount is None else [_VALUE, asked.amount]
    for start, end in reversed([*pairwise([0, *ends, len(text)])]):
        if any(value.search(text, start, end) for value in values):
            return start, end
    return 0, len(text)


def has_claim(behind: str, asked: Asked) -> bool:
    """Return whether `behind` makes a new claim: a value without a noun, or "or", "so", "not"."""
    if _NEW_CLAIM.search(behind):
        return True
    is_money = asked.amount is _PRICE
    return not all(
        _NOUN.match(behind, value.end()) or ("$" in value[0] and not is_money)
        for value in _VALUE.finditer(behind)
    )


def without_circumstances(sentence: str, numbers: frozenset[Fraction]) -> str:
    """Drop trailing prepositional phrases with known numbers from a sentence.

    A phrase is dropped only if a value precedes it in the same clause.
    """
    values = list(_VALUE.finditer(sentence))
    while len(values) > 1:
        value = values.pop()
        before = f"{sentence[: value.start()].rstrip()} "
        phrase = _CIRCUMSTANCE.search(before, max(0, len(before) - MAX_PHRASE))
        is_known = are_stated([value[1]], numbers) or _DEFINITE.search(before) is not None
        if phrase is None or not is_known or _NEW_CLAIM.search(sentence, value.end()):
            break
        if _CLAUSE_END.search(sentence, values[-1].end(), phrase.start()):
            break
        sentence = sentence[: phrase.start()]
    return sentence


def are_stated(values: list[str], numbers: frozenset[Fraction]) -> bool:
    """Return whether every value is one of the question's numbers."""
    read = [number(value) for value in values if len(value) <= MAX_DIGITS]
    return len(read) == len(values) and all(value and value.value in numbers for value in read)


def in_digits(amount: str) -> str:
    fraction = _FRACTION.fullmatch(amount)
    if fraction is not None:
        return f"{with_digits(fraction[1])}/{_DENOMINATORS[fraction[2]]}"
    return with_digits(amount.replace("a dozen", "12"))
