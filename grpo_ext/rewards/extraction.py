r"""Finds the text of the answer in a completion and in a gold solution; docs/rewards.md says where
it may stand.
"""

import re

from grpo_ext.rewards.answers import last_answer, last_boxes, without_thoughts
from grpo_ext.rewards.notation import with_ascii_signs
from grpo_ext.rewards.quantity import DECIMAL, UNIT_NAMES

MAX_ANSWER = 300  # characters of an answer
MAX_TAIL = 5_000  # characters at the end of a completion that may have an answer without tag or box
MAX_FORMULAS = 20  # formulas that are one list
WINDOW = 160  # characters before the last digit in which the last number begins

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_DATE = rf"(?:{_DAY} (?:of )?{_MONTH}(?:,? [0-9]{{4}})?|{_MONTH} {_DAY}(?:,? [0-9]{{4}})?|{_MONTH} [0-9]{{4}})"
_DATE_ALONE = re.compile(_DATE)
_MARKED = r"[0-9][0-9.,]*(?:[_'’`^][0-9]+)+"  # 72_8, 7'2: no number, but read whole
_SIGN = r"(?:(?i:negative|minus) )?[-+]?"
_PLAIN_NUMBER = rf"[$€£]?(?:[0-9]+ [0-9]+/[0-9]+|{DECIMAL}(?:[eE][-+]?[0-9]{{1,2}})?)"
_SUFFIX = (
    rf"(?:\s?\\?%|\s?(?:{UNIT_NAMES})(?![A-Za-z])(?:\^[23])?|\s?[ap]\.?m\b\.?"
    r"|\s(?:hundred|thousand|million|billion|trillion|dozen)\b)?"
)
_ONE = rf"(?:{_DATE}|{_MARKED}|{_SIGN}{_PLAIN_NUMBER}{_SUFFIX})"
_OPERATOR = r"(?:\s?[-+*/:=×÷]\s?|\s[x]\s|(?<=[0-9])x(?=[0-9])|\s(?:to|plus|minus|times)\s)"
_STEPS = rf"{_ONE}(?:{_OPERATOR}{_ONE})*"
_HEDGE = r"(?:about|around|maybe|perhaps|possibly)"
_VALUES = re.compile(
    rf"(?<![0-9A-Za-z.,_'’])({_STEPS}(?:(?:,? (?:and|or) (?:{_HEDGE} )?|, |(?<=[a-z]) ){_STEPS})*)"
    r"(?![0-9A-Za-z]|[_'’^/:-][0-9])"
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bnever|\b(?:any|no)thing but|\bthan|\binstead of|\bat (?:least|most)|\bup to"
    r"|\bexcept|\bexcluding|\bnor|\bneither|\b(?i:maybe|perhaps|possibly)"
    r"|\b(?i:step|case|part|equation|problem|question|figure|page|example))\s*$"
)
_ALTERNATIVE = re.compile(
    rf"[0-9][^.!?\n]{{0,40}}\bor (?:{_HEDGE} )?$"
)  # `12.5 items, or about 12`
_DENIED_AFTER = re.compile(r"\s*(?:(?:is|was|are) )?(?:not|wrong|incorrect|false|impossible)\b")
_STATED = re.compile(r"(?:####|\banswer\**\s*(?:is\b|:|=))[\s:*]*(.+)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\b(?:because|since)\b|\n")
_WITHDRAWN = re.compile(
    r"\b(?:maybe|perhaps|possibly|might be|could be|wait|actually|hmm+|oops|alternatively|on second"
    r" thought)\b[^#]{0,200}[0-9]|(?:^|[.!?\n]\s*)(?:But|However|No,)\b[^#]{0,200}[0-9]",
    re.IGNORECASE,
)
_DISPLAY = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_FORMULA = re.compile(r"\$\$?[^$]*\$\$?|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_UNIT_NAME = re.compile(rf"\b(?:{UNIT_NAMES}|(?i:[ap]\.?m\.?))(?![A-Za-z])")
_WORD_BETWEEN = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or)\b)[A-Za-z]{2,}")
_NAMED = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")  # \text{apples}, \begin{pmatrix}
_LONE_WORD = re.compile(r"[\s*().]*([A-Za-z]{1,30})[\s*().]*")
_WORD = re.compile(r"(?<![\\A-Za-z0-9])(?!and\b)[A-Za-z]{3,}")
_CALCULATOR = re.compile(r"<<[^<>]{0,100}>>")
# `x^2 - 4x + 3 = `: an equation for an unknown, whose other side is not an answer
_UNKNOWN = r"(?:[0-9.]*(?<![A-Za-z])[b-hj-z](?:\^\{?[0-9]+\}?)?(?![A-Za-z]))"
_TERM = rf"(?:{_UNKNOWN}|[0-9.]+(?:\^[0-9]+)?)"
_EQUATION_BEFORE = re.compile(
    rf"(?=[^=]*[a-z])(?:{_TERM}\s?[-+*/]\s?)+{_TERM}\s*=\s*$|(?:[0-9]+[a-z]|\b[a-z]\^\{{?[0-9]+\}}?)\s*=\s*$"
)
_OPERATOR_BEFORE = re.compile(r"(?:[-+*/×÷)]|(?<=\s)x)\s*$")
_REMARK = re.compile(
    r"\s\([^()]{0,200}?[A-Za-z]{2}[^()]{0,200}\)|(?<=[0-9a-z%])\s\([^(),]{1,200}[-+*/=×][^(),]{1,200}\)(?=[.\s]*$)"
)
_SEPARATOR_BEFORE = re.compile(r"\s*(?:[,;]|,?\s(?:and|or))\s*\Z")
_OPTION_FIRST = re.compile(r"(?:\\text[a-z]*\{|[*(])*[A-H][)}*]*\s?[.:)]\s*\S")
_GLUED_UNIT = re.compile(rf"(?<=[0-9])(?=(?:{UNIT_NAMES})$)")


def find_answer(completion: str) -> str | None:
    """Return the text of the answer, at most `MAX_ANSWER` characters, or None."""
    text = without_thoughts(completion)
    answer = last_answer(text)
    if answer is not None:
        return None if len(answer) > MAX_TAIL else boxed(answer) or piece_of(answer)
    return boxed(text) or stated(text[-MAX_TAIL:]) or lone_word(text)


def lone_word(text: str) -> str | None:
    match = _LONE_WORD.fullmatch(text)
    return None if match is None else match[1]


def boxed(text: str) -> str | None:
    """Return the content of the last box, with the boxes that it continues, unless it is empty or
    too long.
    """
    content = (last_boxes(text) or "").strip()
    return content if 0 < len(content) <= MAX_ANSWER else None


def stated(text: str) -> str | None:
    """Return what follows the last `####` or "answer is", unless it is withdrawn; else the last
    formula or number.
    """
    statements = list(_STATED.finditer(text))
    if not statements:
        return last_expression(text)
    sentence = _SENTENCE.split(statements[-1][1], maxsplit=1)[0]
    after = text[statements[-1].start(1) + len(sentence) :]
    if _WITHDRAWN.search(after):
        return stated(after) if _STATED.search(after) else None
    return piece_of(sentence)


def piece_of(text: str) -> str | None:
    """Return the formula or number in the text of an answer: the whole text, unless it is a
    sentence.
    """
    text = with_ascii_signs(text.strip(" \t\r\n*")).removesuffix(".")
    statement = _STATED.search(text)
    if statement is not None:
        text = _SENTENCE.split(statement[1])[0]
    is_option = _OPTION_FIRST.match(text) is not None
    expression = last_expression(text) if is_sentence(text) and not is_option else None
    return expression or (text if 0 < len(text) <= MAX_ANSWER else None)


def is_sentence(text: str) -> bool:
    """Whether an answer has words between its formulas, other than `and`, `or` and units; or words
    if it has no formula.
    """
    if len(text) > MAX_ANSWER:
        return True
    outside, formulas = _FORMULA.subn(" ", text.replace(r"\$", ""))
    if not formulas:
        return has_words(text)
    unnamed = _NAMED.sub("", _UNIT_NAME.sub("", outside))
    return _WORD_BETWEEN.search(unnamed) is not None


def has_words(text: str) -> bool:
    """Whether `text` has words other than commands and their arguments."""
    return _WORD.search(_NAMED.sub("", text)) is not None


def last_expression(text: str) -> str | None:
    """Return the last formula between math delimiters or the last number in `text` that is not
    denied.
    """
    text = _REMARK.sub("", _CALCULATOR.sub("", with_ascii_signs(text)))
    span = last_formula(text)
    end = -1 if span is None else span[1]
    number = last_number(text, end)
    if number is not None or span is None or _DENIED.search(text[: span[0]][-60:]):
        return number
    return without_delimiters(text[slice(*span)])


def without_delimiters(formula: str) -> str:
    """Remove the delimiters around one formula; several keep theirs."""
    for opening, closing in _DISPLAY:
        inner = formula.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(formula) - len(opening + closing) and opening not in inner:
            return inner.strip()
    return formula


def last_formula(text: str) -> tuple[int, int] | None:
    """Return where the last formula between math delimiters begins and ends, with those before it
    that it continues.
    """
    spans = [delimited(text, len(text), pair) for pair in _DISPLAY]
    last = max((span for span in spans if span is not None), key=lambda span: span[1], default=None)
    if last is None:
        return None
    start, end = last
    for _ in range(MAX_FORMULAS):
        separator = _SEPARATOR_BEFORE.search(text, max(0, start - 20), start)
        if separator is None:
            break
        before = [delimited(text, separator.start(), pair) for pair in _DISPLAY]
        joined = [span for span in before if span is not None and span[1] == separator.start()]
        if not joined or end - joined[0][0] > MAX_ANSWER:
            break
        start = joined[0][0]
    return start, end


def delimited(text: str, limit: int, pair: tuple[str, str]) -> tuple[int, int] | None:
    """Return where the last formula before `limit` between a pair of delimiters begins and ends,
    delimiters included.
    """
    opening, closing = pair
    if opening == "$":
        stop = last_dollar(text, limit, closes=True)
        start = last_dollar(text, stop, closes=False) if stop > 0 else -1
    else:
        stop = text.rfind(closing, 0, limit)
        start = text.rfind(opening, 0, stop) if stop > 0 else -1
    content = text[start + len(opening) : stop].strip() if start >= 0 else ""
    if not content or len(content) > MAX_ANSWER or has_words(content):
        return None
    return start, stop + len(closing)


def last_dollar(text: str, end: int, *, closes: bool) -> int:
    r"""Return the position of the last `$` before `end` that is no `\$`, or -1; one that closes
    stands before no digit.
    """
    position = text.rfind("$", 0, end)
    while position > 0:
        escaped = text[position - 1] == "\\"
        is_price = closes and text[position + 1 : position + 2].isdecimal()
        if not escaped and not is_price:
            break
        position = text.rfind("$", 0, position)
    return position


def last_number(text: str, start: int) -> str | None:
    """Return the last number, sum or list of numbers after `start` that is neither denied nor a
    side of an equation.
    """
    digits = (at for at in range(len(text) - 1, start, -1) if text[at] in "0123456789")
    last_digit = next(digits, 0)
    matches = list(_VALUES.finditer(text, max(start, last_digit - WINDOW, 0)))
    date = None
    for match in reversed(matches):
        before = text[max(0, match.start() - 60) : match.start()]
        if len(match[1]) > MAX_ANSWER or _DENIED.search(before):
            continue
        if _DENIED_AFTER.match(text, match.end()):
            continue
        if _DATE_ALONE.fullmatch(match[1]):  # the answer may stand before: `$130 by June 2020`
            date = date or match[1]
            continue
        steps = match[1]
        if _OPERATOR_BEFORE.search(before):  # `5 apples * 3 = 15` begins in words: only 15 counts
            first_sides, sign, steps = steps.rpartition("=")
            before += first_sides + sign
        if _EQUATION_BEFORE.search(before) or _ALTERNATIVE.search(before):
            return None
        return _GLUED_UNIT.sub(" ", steps.strip())
    return date
