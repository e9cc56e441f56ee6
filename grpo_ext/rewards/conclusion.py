r"""Cut the last sentence of a completion right after the value that answers the question.

A reader who knows the question ignores what follows: in `She fills 14 bags with 2 lollipops each.`,
14 answers "how many bags". docs/rewards.md has the rules.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from grpo_ext.rewards.asides import (
    NEW_CLAIM,
    VALUE,
    are_stated,
    is_circumstance,
    without_asides,
    without_check,
    without_circumstances,
    without_hypothesis,
    without_point,
    without_rate,
    without_remarks,
)
from grpo_ext.rewards.quantity import WORDED, with_digits
from grpo_ext.rewards.request import (
    NEGATION,
    PRICE,
    WORDED_FRACTION,
    Request,
    words_of,
)

_SENTENCE_END = re.compile(r"[.!?](?:\s+|$)|\n+")
_NOUN = re.compile(
    r"(?:st|nd|rd|th|\s?%)?(?:\s?[ap]\.?m\b|:[0-9]{2}"
    r"| (?:more|less|fewer)(?: [a-z]+)? than\b"
    r"|[ -](?!(?:and|or|of|in|is|was|are|were|as|at|by|if|to|so|then|left|more|less|remain"
    r"|altogether|total|instead|each|will|have|has|had|can|come|comes|[a-z]+ed"
    r"|[a-z]+ing)\b)[A-Za-z]{2,})"
)
_THING = re.compile(
    r",? (?:while|whereas) |,? (?:and|but) (?=(?:the|its|their|his|her|it|he|she|they|will|was) )"
)
_VERB = re.compile(r" (?:is|are|was|were|will be|would be|has|have|had) ")
_RESULT_BEFORE = re.compile(
    r"(?:[=≈]|\b(?:is|are|was|were|be|to|makes?|gives?|leaves?|leaving|equals?))\s*$"
)
# Two sentences on one line; the last is about another person
_OTHER_PERSON = re.compile(
    r"""
    ((?:^|[.!?\n]) [^.!?\n]{1,300} [.!?]) [ ]
    ((?:(?:His|Her|Their)[ ][a-z]+ | (?!He|She|It|They|Th)([A-Z][a-z]+)(?=[ ](?:is|was|will|has)\b))
    [ ][^.!?\n]{1,300} [.!?]?) \s*\Z
    """,
    re.VERBOSE,
)
_LEAVING = re.compile(r"\bleaving\s*$")  # `took 26 pieces, leaving 14`
_REMAINDER = {"left", "remain", "remaining", "leave", "still", "now"}
_THAN = re.compile(r"\bthan\b[^,.;]*$")
_PERSON = re.compile(r",? (?:and|while|whereas|but) (?=[A-Z][a-z])|, (?=[A-Z][a-z]+ (?!=))")
_NEXT_WORD = re.compile(r" [a-z]+")
_DIGITS = re.compile(r"[0-9.,/]+")
_LISTED = re.compile(r"[0-9](?:,|,? and) \$?[0-9]")
_PHRASE = re.compile(r"[0-9.,/]*[^0-9,.;]*")
_WORD_AT_END = re.compile(rf"(?<=\b(?:is|to|be) )({WORDED})(?=[.!\s]*$)")
_INVERTED = re.compile(
    r"(?:^|[,:=] |\b(?i:so|and|thus|therefore|hence) )"
    r"\$?([0-9][0-9.,/]*)\$? (?:is|are) (?:also )?(?:the|one|an?)\b"
)
_ALTERNATIVE = re.compile(r"[0-9](?:\\?%)? [a-z][^.!?]{0,40}\bor (?=[-0-9.+*/×=() $]*$)")
# `90 child tickets, giving 240 tickets in total`
_TOTAL_BEHIND = re.compile(
    r",? (?:giving|making|for) (?:a total of )?[0-9.,]+(?: [a-z]+){1,5}[.\s]*$"
)
_RATE = re.compile(r"[a-z]*(?: [a-z]+)? (?:per|each|every)\b")
_DENOMINATORS = dict(hal=2, thi=3, qua=4, fou=4, fif=5, six=6, sev=7, eig=8, nin=9, ten=10)
_AND = re.compile(r"\band (?:then|so|hence|thus|therefore|thereby)\b(?= \$?[a-z] ?=)")


def with_conclusion(text: str, request: Request) -> str:
    """In the last sentence that contains a value, remove what follows the answer to the question.

    Return the remaining text, with an answer in words converted to digits. Remarks, checks of the
    result and a last sentence about another person are removed as well. Text that may change the
    answer, such as a new claim, is kept.
    """
    text = without_point(without_check(without_remarks(text)), request)
    text = without_rate(without_hypothesis(text, request), request)
    text = without_other_person(without_counts(text, request), request)
    text = _WORD_AT_END.sub(lambda match: with_digits(match[0]), text)
    start, end = last_sentence(text, request)
    sentence = own_clause(_AND.sub("and", text[start:end]), request)
    if request.negated:
        sentence = NEGATION.sub("", sentence)
    if request.bound is not None:
        sentence = sentence.replace(f"{request.bound} ", "")
    sentence = before_definition(without_asides(sentence, request), request)
    sentence = in_requested_amounts(sentence, request)
    return text[:start] + without_circumstances(sentence, request) + text[end:]


def without_counts(text: str, request: Request) -> str:
    """Remove a last sentence that only repeats counts, if the question asks for money.

    For example, remove `She also needs cups for her 30 guests.` after `She will spend $12.` The
    text is returned unchanged unless each number in the sentence is in the question and precedes a
    noun. It is also returned unchanged if the sentence contains a price or a new claim, or if no
    price precedes the sentence. The last sentence is the last one with a number or an amount; any
    text after it is removed as well.
    """
    if request.amount is not PRICE:
        return text
    start, end = last_sentence(text, request)
    values = list(VALUE.finditer(text, start, end))
    has_nouns = all(_NOUN.match(text, value.end()) for value in values)
    has_price = "$" in text[start:end] or PRICE.search(text, start, end) is not None
    are_known = are_stated([value[1] for value in values], request.numbers)
    has_new_claim = NEW_CLAIM.search(text, start, end) is not None
    if not has_nouns or not are_known or has_price or has_new_claim:
        return text
    if not PRICE.search(text, 0, start):
        return text
    return text[:start]


def without_other_person(text: str, request: Request) -> str:
    """Remove a last sentence about another person, as in `He has 24 left. His friend has 12`.

    The last sentence is removed only if it does not contain the name that the question asks about,
    and if the sentence before it, on the same line, contains a value and that name. If the last
    sentence begins with "His", "Her" or "Their", the sentence before it need not contain the name
    if it shares more words with the question than the last sentence does.
    """
    match = _OTHER_PERSON.search(text)
    if match is None:
        return text
    before, sentence, name = match.groups()
    if request.name is not None and request.name in sentence:
        return text
    is_apt = request.name is not None and request.name in before
    if name is None:
        shared_before = request.words & words_of(before)
        shared = request.words & words_of(sentence)
        is_apt = is_apt or len(shared_before) > len(shared)
    if not VALUE.search(before) or not is_apt:
        return text
    return text[: match.start(2)]


def before_definition(sentence: str, request: Request) -> str:
    """Cut a sentence such as `36 is the least common multiple of 12 and 18` after the 36.

    The sentence is returned unchanged if it does not have this form, or if a number after the 36 is
    not in the question.
    """
    claim = _INVERTED.search(sentence)
    if claim is None:
        return sentence
    behind = VALUE.findall(sentence, claim.end(1))
    if not are_stated(behind, request.numbers):
        return sentence
    return sentence[: claim.end(1)]


def own_clause(sentence: str, request: Request) -> str:
    """Cut a sentence after the clause that answers the question.

    If the question asks about a person and the sentence is about several people, the clause with
    the person's name answers it. Otherwise, the clause whose subject shares the most words with the
    question does. The sentence is returned unchanged if there is a tie, if the clause contains a
    list of values or no value, or if the rest of the sentence makes a new claim.
    """
    clauses = [sentence]
    if request.name is not None:
        clauses = clauses_of(sentence, _PERSON)
        shared = [int(request.name in clause) for clause in clauses]
    if len(clauses) == 1:
        clauses = clauses_of(sentence, _THING)
        shared = [len(request.words & words_of(subject_of(clause))) for clause in clauses]
    position = shared.index(max(shared))
    clause = clauses[position]
    behind = "".join(clauses[position + 1 :])
    is_only = shared.count(max(shared)) == 1
    has_value = VALUE.search(clause) is not None and _LISTED.search(clause) is None
    if not is_only or not has_value or NEW_CLAIM.search(behind):
        return sentence
    return sentence.removesuffix(behind)


def clauses_of(sentence: str, start: re.Pattern[str]) -> list[str]:
    """Split a sentence into clauses; each match of `start` begins a new one."""
    starts = [0, *(match.start() for match in start.finditer(sentence)), len(sentence)]
    return [sentence[begin:end] for begin, end in pairwise(starts)]


def subject_of(clause: str) -> str:
    """Return up to four words before a clause's verb (such as "is"), or "" if there is no verb."""
    verb = _VERB.search(clause)
    if verb is None:
        return ""
    return " ".join(clause[: verb.start()].split()[-4:])


def in_requested_amounts(sentence: str, request: Request) -> str:
    """Cut a sentence after the amount that the question asks for, and convert the amount to digits.

    The rest of the sentence is kept if it makes a new claim (see `has_claim`). If no other amount
    could be the answer, an alternative in another unit before the amount is removed. A sentence
    without such an amount is returned unchanged.
    """
    if request.amount is None:
        return sentence
    amounts = list(request.amount.finditer(sentence))
    if not amounts:
        return sentence
    amounts = preferred(amounts, lambda a: not is_circumstance(sentence, a, request.numbers))
    amounts = preferred(amounts, lambda a: is_rate(sentence, a) == request.is_rate)
    is_only = len(amounts) == 1
    amounts = preferred(amounts, lambda a: has_nouns(sentence, a.start(), request.nouns))
    amount = described_amount(sentence, amounts, request.words)
    before = sentence[: amount.start()]
    alternative = _ALTERNATIVE.search(before)
    if alternative is not None and is_only:
        before = before[alternative.end() :]
    behind = sentence[amount.end() :]
    if len(request.nouns) > 1 and has_nouns(sentence, amount.start(), request.nouns):
        behind = _TOTAL_BEHIND.sub("", behind)
    if not has_claim(behind, request):
        behind = ""
    return before + in_digits(amount[0]) + behind


def preferred(
    amounts: list[re.Match[str]], has_property: Callable[[re.Match[str]], bool]
) -> list[re.Match[str]]:
    """Return the amounts that have a property, or all amounts if none has it."""
    return list(filter(has_property, amounts)) or amounts


def is_rate(sentence: str, amount: re.Match[str]) -> bool:
    """Return whether "per", "each" or "every" follows an amount, as in `10 miles per hour`."""
    return _RATE.match(sentence, amount.end()) is not None


def has_nouns(sentence: str, start: int, nouns: frozenset[str]) -> bool:
    """Return whether all `nouns` follow the number at `start`, before the next digit or `,.;`."""
    phrase = _PHRASE.match(sentence, start)
    return phrase is not None and all(noun in phrase[0] for noun in nouns)


def described_amount(
    sentence: str, amounts: list[re.Match[str]], words: frozenset[str]
) -> re.Match[str]:
    """Return the last amount that is followed by a word of the question, or else the last amount.

    For example, return `48 walls` in `48 walls purple and 32 walls green` if the question contains
    "purple". Only amounts with the same noun as the last one are considered.

    Args:
        sentence: the sentence that contains the amounts.
        amounts: the matches of the amounts in `sentence`, in order; must not be empty.
        words: the word stems of the question's request.
    """
    last = amounts[-1]
    last_noun = _DIGITS.sub("", last[0])
    for amount in reversed(amounts):
        next_word = _NEXT_WORD.match(sentence, amount.end())
        if next_word is None or _DIGITS.sub("", amount[0]) != last_noun:
            continue
        if words & words_of(next_word[0]):
            return amount
    return last


def last_sentence(text: str, request: Request) -> tuple[int, int]:
    """Return the offsets (start, end) of the last sentence that contains a number or an amount.

    An amount is a match of `request.amount`. If no sentence contains either, return the offsets of
    the whole text.
    """
    values = [VALUE]
    if request.amount is not None:
        values.append(request.amount)
    starts = [0]
    for sentence_end in _SENTENCE_END.finditer(text):
        starts.append(sentence_end.end())
    end = len(text)
    for start in reversed(starts):
        if any(value.search(text, start, end) for value in values):
            return start, end
        end = start
    return 0, len(text)


def has_claim(behind: str, request: Request) -> bool:
    """Return whether `behind`, the text after the answer, makes a new claim.

    A new claim is a value that may also answer the question (see `is_claimed`), or a word or sign
    such as "or", "so", "not" or `=`.
    """
    if NEW_CLAIM.search(behind):
        return True
    return any(is_claimed(behind, value, request) for value in VALUE.finditer(behind))


def is_claimed(behind: str, value: re.Match[str], request: Request) -> bool:
    """Return whether a value that follows the answer may also answer the question.

    A value cannot answer the question if a possible noun follows it (any word except words such as
    "and", "is" or "left"), if it is part of a time of day or of a comparison such as
    `20 more than`, if "than" precedes it with no `,`, `.` or `;` in between, or if it is a price
    and the question does not ask for money. A number that the question states can be the answer
    only as a result, as in `is 20`, `= 20`, or, if the question asks for a remainder, `leaving 20`.

    Args:
        behind: the text after the answer.
        value: the match of the value in `behind`.
        request: the parsed request of the question.
    """
    if _NOUN.match(behind, value.end()):
        return False
    if _THAN.search(behind, 0, value.start()):
        return False
    is_price = "$" in value[0]
    if is_price and request.amount is not PRICE:
        return False
    is_result = _RESULT_BEFORE.search(behind, 0, value.start()) is not None
    if _LEAVING.search(behind, 0, value.start()) and not request.words & _REMAINDER:
        is_result = False
    return is_result or not are_stated([value[1]], request.numbers)


def in_digits(amount: str) -> str:
    fraction = WORDED_FRACTION.fullmatch(amount)
    if fraction is not None:
        return f"{with_digits(fraction[1])}/{_DENOMINATORS[fraction[2].lower()]}"
    return with_digits(amount.replace("a dozen", "12"))
