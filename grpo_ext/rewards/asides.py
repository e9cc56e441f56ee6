"""Remove asides: words after a value that do not change the answer, such as remarks and reasons.

In `She has 6 bones left, 2 fewer than Rex (see above)`, the words after `left` are asides.
"""

import re
from fractions import Fraction

from grpo_ext.rewards.quantity import CURRENCY_SIGNS, number
from grpo_ext.rewards.request import AMOUNT, Request

MAX_DIGITS = 40  # maximum length of a number that is compared with the question's numbers
MAX_BREAKDOWN = 300  # characters of a sentence that is searched for a total and its parts
MAX_PHRASE = 80  # characters before a number that are searched for a preposition

VALUE = re.compile(rf"\\?[{CURRENCY_SIGNS}]?\s?({AMOUNT})")
NEW_CLAIM = re.compile(
    r"[=≈]|\\approx|\b(?:or|not|no|so|thus|hence|therefore|wait|actually|but|however|maybe|perhaps"
    r"|possibly|which|i\.e|total|altogether)\b",
    re.IGNORECASE,
)
# A remark, `(that is, 3 dozen)`, or a calculation at the end of a sentence, `(3 * 12)`
_REMARK = re.compile(
    r"\s\([^()]{0,200}?(?<![\\A-Za-z])[A-Za-z]{2}[^()]{0,200}\)"
    r"|(?<=[0-9a-z%])\s\([^(),]{1,200}[-+*/=×][^(),]{1,200}\)(?=[.\s]*$)"
)
_CALCULATOR = re.compile(r"<<[^<>]{0,100}>>")
# A sentence that checks the answer: `Check: 4(8) = 32`
_CHECK = re.compile(
    r"(?<=[.!?\n])[\s*]{0,10}(?:(?:to|we can|you can|let's|let us|let me) )?"
    r"(?:(?:double[- ]?)?check|verif)"
    r"(?:(?!≠|\b(?:so|thus|therefore|hence|not|wrong|but|however)\b).)*\Z",
    re.IGNORECASE | re.DOTALL,
)
# A last line or sentence such as `Note: this assumes that a dozen is 12.` or `I hope this helps!`
_NOTE_START = (
    r"(?:(?:please )?(?:note|remember)\b|(?:remark|assumption|disclaimer)s?\b|i hope\b|hope this\b"
    r"|let me know\b|feel free\b|if you have any\b|if you(?:'d| would) like\b|if you want\b)"
)
_NOTE = re.compile(
    rf"\n[\s(*_>]{{0,10}}{_NOTE_START}[^\n]*\Z"
    rf"|[.!?][\s(*_]{{1,10}}{_NOTE_START}[^\n.!?]*[.!?)*_]*\Z",
    re.IGNORECASE,
)
# Signs that a note corrects the answer
_CORRECTION = re.compile(
    r"[=≈]|\b(?:so|thus|therefore|hence|wrong|incorrect|however|but|actually|instead|should|must"
    r"|total|mistake|error|correct(?:ion|ed)?|answer (?:is|was|would)|####)\b|answer:|boxed",
    re.IGNORECASE,
)
MAX_NOTES = 3  # notes that are removed from the end of a text
# `25/3, or about 8.33`
_OR_ABOUT = re.compile(rf"({AMOUNT}),? or (?:about|approximately|roughly) ({AMOUNT})(\\?%)?")
# `5/12 ≈ 0.4167`
_DECIMAL_OF_FRACTION = re.compile(
    r"(?:(?<=[)}π])|(?<=/[0-9])|(?<=/[0-9]{2})|(?<=/[0-9]{3}))\s?\$?\s?(?:≈|\\approx)\s?\$?\s?"
    r"[0-9]*\.[0-9]+(?:\\?%)?\$?(?: [a-z]+){0,3}[.\s]*$"
)
# `25π cm, which is about 78.5 cm`
_APPROXIMATION = re.compile(
    r"(?:(?<=[0-9)}$%])(?:(?: [a-z]+){0,2},? which is|,?)|(?<=[)}$π])(?: [a-z]+){0,2},? or)"
    rf" (?:about|approximately|roughly) \\?[{CURRENCY_SIGNS}]?{AMOUNT}(?:\\?%)?\$?"
    r"(?: [a-z]+){0,3}[.\s]*$"
)
# `: 9 by Ann and 11 by Bob`
_BREAKDOWN = re.compile(rf"[,:] (?={VALUE.pattern} [a-z])")
_OF_FIRST = re.compile(r"(?:^|, )(?:out )?of (?:[a-z]+ )?$", re.IGNORECASE)  # `Of the 28 pies`
# `which is 80 jumps per day`
_RATE = re.compile(
    rf",? (?:which is|or|that is) {VALUE.pattern}(?: [a-z]+){{1,3}} (?:per|each|every|an?) [^,]*$"
)
# `since 3(5) + 7 = 22`, `after Doris spent $6`, but not `after 3 days`
_REASON = re.compile(
    rf"(?:,? (?:{AMOUNT} )?(?:of which|of whom|including)\b|(?<! and),? (?:(?:since|because)\b"
    r"|(?:after|before|once|when) (?=[A-Z]|(?:he|she|it|they|we|you)\b)))[^,]*$"
)
# `when x = 3`
_CONDITION = re.compile(r",? (?:at|when|for|where|if) \$?([a-z]) ?= ?[^\s,$]+\$?[.\s]*$")
# `2 fewer than Rex`, `compared to 8`
_COMPARISON = re.compile(
    rf",? (?:which is )?(?:{VALUE.pattern}(?: [a-z]+)? (?:more|less|fewer|[a-z]+er) than"
    r"|compared (?:to|with)|as opposed to|instead of|(?:up|down) from)\b[^,]*$"
)
# `than Mara, who has 24`
_COMPARED_PERSON = re.compile(r"\bthan [^,.;]{0,40}?([A-Za-z]+), who [^,]*$")
# `5, i.e. the point (0, 5)`
_POINT = re.compile(
    r"(?<![0-9./-])(-?[0-9][0-9./]{0,20})[*$\s]{0,4},? (?:i\.e\.,?|that is,?|which is) (?:at )?"
    r"the point \$?\(([^()]{1,80})\)[.*$\s]*\Z"
)
# `She could buy one more book for $12.`, `If two were alike, there would be 60 ways.`
_HYPOTHESIS = re.compile(
    r"(?<=[.!?])\s(?:(?:S?[Hh]e|They|You|We) (?:could|might)|If [^.!?\n]{1,100} (?:would|could)"
    r"|To [^.!?\n]{1,100} could)\b[^.!?\n]*[.!?]?\s*\Z"
)
# `She is 24 now, and she will be 30 in 6 years`
_LATER = re.compile(
    rf",? (?:and|but) (?:s?he|it|they) will be {AMOUNT}(?: [a-z]+){{0,2}} in {AMOUNT} [a-z]+[.\s]*$"
)
# `$135. That works out to $67.50 per person.`
_RATE_REMARK = re.compile(
    r"(?<=[.!?])\s(?:That|This|It) (?:is|works out to|comes to|amounts to) [^.!?\n]{0,20}[0-9]"
    r"[^!?\n]{0,60}\b(?:per|each|every|a(?= (?:day|week|month|year|person)))\b[^.!?\n]*[.!?]?\s*\Z"
)
# `100 degrees Celsius, which is equal to 212 degrees Fahrenheit`
_OTHER_UNIT = re.compile(
    rf"([A-Za-z]+),? which is (?:equal|equivalent) to {VALUE.pattern}"
    r"(?: [a-z]+){0,2} ([A-Za-z]+)[.\s]*$"
)
_MODALS = {"could", "can", "would", "might"}
# Words before the number in a phrase such as `after 60 days`, `out of the 12`
_KNOWN_BY = r"(?:the|his|her|its|their|all|those|these)"
_CIRCUMSTANCE = re.compile(
    r"(?i)(?<=[a-z]) out of ?$"
    r"|,? (?:(?:after|before|during|in|for|with|from|at|by|on|per|over|within|than|between|among"
    r"|when|if|besides|through|until|since|addition to|(?<=ways )to)(?! an? (?:[a-z]+ ){1,2}of )"
    r"(?: [A-Za-z'-]+){0,3}"
    r"|(?:from|between) [0-9]+ (?:to|and)"
    rf"|(?:out )?of(?= {_KNOWN_BY}\b)(?: [A-Za-z'-]+){{1,3}}) ?$"
)
_THREE_WORDS = re.compile(r"(?: [^\s=]+){3} $")
_DEFINITE = re.compile(rf"\b{_KNOWN_BY} $")
_CLAUSE_END = re.compile(r"[,;=]|\b(?:which|so|that)\b")


def without_remarks(text: str) -> str:
    """Remove remarks and final calculations in parentheses, and GSM8K's calculator annotations.

    Examples are `(that is, 3 dozen)`, `(3 * 12)` and `<<3*4=12>>`.
    """
    return _REMARK.sub("", _CALCULATOR.sub("", text))


def without_check(text: str) -> str:
    """Remove sentences at the end of `text` that only check the answer, as in `Check: 4(8) = 32`.

    The sentences are kept if no value precedes them.
    """
    return without_aside(text, _CHECK)


def without_notes(text: str) -> str:
    """Remove notes such as `Note: ...` and `I hope this helps!` from the end of `text`.

    A note is kept if it might correct the answer, if no text precedes it, or if it contains a value
    and the text before it does not. At most `MAX_NOTES` notes are removed.
    """
    for _ in range(MAX_NOTES):
        text = text.rstrip()
        note = _NOTE.search(text)
        if note is None or _CORRECTION.search(note[0]):
            return text
        before = text[: note.start() + 1]  # including the punctuation mark that ends the sentence
        if not before.strip() or (VALUE.search(note[0]) and not VALUE.search(before)):
            return text
        text = before
    return text


def without_hypothesis(text: str, request: Request) -> str:
    """Remove a hypothetical last sentence, such as `She could buy one more book for $12.`

    Return `text` unchanged if the question is unknown or contains "can", "could", "might" or
    "would", or if no value precedes the sentence.
    """
    if not request.text or not _MODALS.isdisjoint(request.text.split()):
        return text
    return without_aside(text, _HYPOTHESIS)


def without_rate(text: str, request: Request) -> str:
    """Remove a last sentence that restates a total as a rate, such as `That is $5 per person.`

    Return `text` unchanged if the question asks for a rate, or if no value precedes the sentence.
    """
    if request.is_rate:
        return text
    return without_aside(text, _RATE_REMARK)


def without_other_unit(sentence: str, request: Request) -> str:
    """Remove the conversion of a value to a unit that the question does not contain.

    The question must contain the unit that is converted, such as Celsius in `100 degrees Celsius,
    which is equal to 212 degrees Fahrenheit`; otherwise, the conversion is kept.
    """
    match = _OTHER_UNIT.search(sentence)
    if match is None or not request.states(match[1]) or request.states(match[3]):
        return sentence
    return sentence[: match.end(1)]


def without_point(text: str, request: Request) -> str:
    """Remove the point that restates a value, as in `5, i.e. the point (0, 5)`.

    The point is kept if the value is not one of its coordinates, or if the question asks for a
    point.
    """
    match = _POINT.search(text)
    if match is None or request.words & {"point", "coordinate", "pair"}:
        return text
    value, coordinates = match.groups()
    if value not in [coordinate.strip() for coordinate in coordinates.split(",")]:
        return text
    return text[: match.end(1)]


def without_asides(sentence: str, request: Request) -> str:
    """Remove asides such as approximations, reasons and comparisons from the end of a sentence.

    A condition such as `when x = 3` is kept if the question asks for x, a rate if the question asks
    for a rate, and a comparison if the question asks for a difference. The phrase
    `than Mara, who has 24` is removed unless the question asks about Mara. A statement about the
    future (`and he will be 30 in 6 years`) is removed only if the question contains "now".
    """
    if "now" in request.words:
        sentence = without_aside(sentence, _LATER)
    sentence = without_other_unit(sentence, request)
    sentence = _OR_ABOUT.sub(without_rounded, sentence)
    sentence = without_breakdown(sentence)
    for aside in (_DECIMAL_OF_FRACTION, _APPROXIMATION, _REASON):
        sentence = without_aside(sentence, aside)
    condition = _CONDITION.search(sentence)
    if condition is not None and condition[1] not in request.letters:
        sentence = without_aside(sentence, _CONDITION)
    compared = _COMPARED_PERSON.search(sentence)
    if compared is not None and compared[1] != request.name:
        sentence = without_aside(sentence, _COMPARED_PERSON)
    if not request.is_rate:
        sentence = without_aside(sentence, _RATE)
    if not request.is_difference:
        sentence = without_aside(sentence, _COMPARISON)
    return sentence


def without_aside(text: str, aside: re.Pattern[str]) -> str:
    """Cut `text` at the first match of `aside`, if a value precedes the match.

    Otherwise, return `text` unchanged.
    """
    match = aside.search(text)
    if match is None:
        return text
    start = match.start()
    if not VALUE.search(text, 0, start):
        return text
    return text[:start]


def without_breakdown(sentence: str) -> str:
    """Remove the breakdown of a total, as in `20 streets: 9 by Ann and 11 by Bob`.

    The breakdown is kept unless it has at least two parts that add up to the total, and the text
    from the first part on makes no new claim. A number after "of", as in `Of the 20 streets`, does
    not count as a total. A sentence of more than `MAX_BREAKDOWN` characters is returned unchanged.
    """
    if len(sentence) > MAX_BREAKDOWN:
        return sentence
    for start in _BREAKDOWN.finditer(sentence):
        totals = list(VALUE.finditer(sentence, 0, start.start()))
        parts = VALUE.findall(sentence, start.end())
        if not totals or len(parts) < 2 or NEW_CLAIM.search(sentence, start.end()):
            continue
        total = totals[-1]
        is_stated = _OF_FIRST.search(sentence, 0, total.start(1)) is not None
        if not is_stated and is_sum_of(total[1], parts):
            return sentence[: start.start()]
    return sentence


def is_sum_of(total: str, parts: list[str]) -> bool:
    """Return whether the numbers in `parts` add up to `total`.

    Return `False` if any of them is not a number or has more than `MAX_DIGITS` characters.
    """
    numbers = [number(text) for text in (total, *parts) if len(text) <= MAX_DIGITS]
    values = [read.value for read in numbers if read is not None]
    return len(values) == len(parts) + 1 and values[0] == sum(values[1:])


def without_rounded(match: re.Match[str]) -> str:
    """Return the exact number in a match of `_OR_ABOUT`: `25/3` for `25/3, or about 8.33`.

    If the second number is not the first one rounded up or down, return the whole match.
    """
    exact, rounded, percent_sign = match.groups()
    factor = 100 if percent_sign else 1
    if rounds(rounded, exact, factor):
        return exact
    return match[0]


def rounds(decimal: str, exact: str, factor: int = 1) -> bool:
    """Return whether `decimal` is `factor` times `exact`, rounded up or down.

    Return `False` if `decimal` has no decimal places, if `exact` is itself a decimal, or if either
    is not a number or has more than `MAX_DIGITS` characters.
    """
    if max(len(decimal), len(exact)) > MAX_DIGITS:
        return False
    rounded = number(decimal)
    value = number(exact)
    if rounded is None or value is None or value.place:
        return False
    return abs(rounded.value - factor * value.value) < rounded.place


def without_circumstances(sentence: str, request: Request) -> str:
    """Remove trailing prepositional phrases with known numbers, such as `after 60 days`.

    A number is known if it is in the question, or if it follows "out of" or a word such as "the" or
    "his". A phrase is removed only if a value precedes it in the same clause and no new claim
    follows it. If the question contains the last three words before a number together with the
    number, as in `an average of 93`, these words and all text after them are removed as well.
    """
    values = list(VALUE.finditer(sentence))
    while len(values) > 1:
        value = values.pop()
        before = f"{sentence[: value.start()].rstrip()} "
        if NEW_CLAIM.search(sentence, value.end()):
            break
        quotation = _THREE_WORDS.search(before, max(0, len(before) - MAX_PHRASE))
        if quotation is not None and request.states(quotation[0] + value[0]):
            sentence = sentence[: quotation.start()]
            continue
        phrase = _CIRCUMSTANCE.search(before, max(0, len(before) - MAX_PHRASE))
        if phrase is None:
            break
        is_known = are_stated([value[1]], request.numbers) or _DEFINITE.search(before) is not None
        if not is_known and not phrase[0].endswith("out of "):
            break
        if _CLAUSE_END.search(sentence, values[-1].end(), phrase.start()):
            break
        sentence = sentence[: phrase.start()]
    return sentence


def is_circumstance(sentence: str, amount: re.Match[str], numbers: frozenset[Fraction]) -> bool:
    """Return whether an amount is a known number after a preposition, as in `Of the 28 pies, ...`.

    A number is known if it is in the question, or if it follows a word such as "the" or "his".

    Args:
        sentence: the sentence that contains the amount.
        amount: the match of the amount in `sentence`.
        numbers: the numbers in the question.
    """
    value = VALUE.search(amount[0])
    if value is None:
        return False
    before = f" {sentence[: amount.start()]}"[-MAX_PHRASE:]
    if not _CIRCUMSTANCE.search(before):
        return False
    return are_stated([value[1]], numbers) or _DEFINITE.search(before) is not None


def are_stated(values: list[str], numbers: frozenset[Fraction]) -> bool:
    """Return whether every numeral in `values` equals one of `numbers`.

    A numeral of more than `MAX_DIGITS` characters counts as different from all of them.
    """
    for value in values:
        if len(value) > MAX_DIGITS:
            return False
        read = number(value)
        if read is None or read.value not in numbers:
            return False
    return True
