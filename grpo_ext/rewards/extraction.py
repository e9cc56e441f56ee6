r"""Finds the text of the answer in a completion and in a gold solution; docs/rewards.md says where it may stand."""

import re

from grpo_ext.rewards.answers import last_answer, last_boxes, without_thoughts
from grpo_ext.rewards.notation import with_ascii_signs
from grpo_ext.rewards.quantity import DECIMAL, UNIT_NAMES

MAX_ANSWER = 300  # characters of an answer
MAX_TAIL = 5_000  # characters at the end of a completion that may have an answer without tag or box
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
_VALUES = re.compile(
    rf"(?<![0-9A-Za-z.,_'’])({_STEPS}(?:(?:,? (?:and|or) |, |(?<=[a-z]) ){_STEPS})*)"
    r"(?![0-9A-Za-z]|[_'’^/:-][0-9])"
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bnever|\b(?:any|no)thing but|\bthan|\binstead of|\bat (?:least|most)|\bup to"
    r"|\bexcept|\bexcluding|\bnor|\bneither)\s*$"
)
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
_UNIT_NAME = re.compile(rf"\b(?:{UNIT_NAMES})\b")
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
_REMARK = re.compile(r"\s\([^()]{0,200}?[A-Za-z]{2}[^()]{0,200}\)")
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
    """Return the content of the last box, with the boxes that it continues, unless it is empty or too long."""
    content = (last_boxes(text) or "").strip()
    return content if 0 < len(content) <= MAX_ANSWER else None


def stated(text: str) -> str | None:
    """Return what follows the last `####` or "answer is", unless it is withdrawn; else the last formula or number."""
    statements = list(_STATED.finditer(text))
    if not statements:
        return last_expression(text)
    sentence = _SENTENCE.split(statements[-1][1], maxsplit=1)[0]
    rest = text[statements[-1].start(1) + len(sentence) :]
    if _WITHDRAWN.search(rest):
        return stated(rest) if _STATED.search(rest) else None
    return piece_of(sentence)


def piece_of(text: str) -> str | None:
    """Return the formula or number in the text of an answer: the whole text, unless it is a sentence."""
    text = with_ascii_signs(text.strip(" \t\r\n*")).removesuffix(".")
    statement = _STATED.search(text)
    if statement is not None:
        text = _SENTENCE.split(statement[1])[0]
    piece = last_expression(text) if is_sentence(text) else None
    return piece or (text if 0 < len(text) <= MAX_ANSWER else None)


def is_sentence(text: str) -> bool:
    """Whether an answer has words between its formulas, other than `and`, `or` and units; or words if it has no formula."""
    if len(text) > MAX_ANSWER:
        return True
    outside, formulas = _FORMULA.subn(" ", text.replace(r"\$", ""))
    if not formulas:
        return has_words(text)
    words = _NAMED.sub("", _UNIT_NAME.sub("", outside))
    return _WORD_BETWEEN.search(words) is not None


def has_words(text: str) -> bool:
    """Whether `text` has words other than commands and their arguments."""
    return _WORD.search(_NAMED.sub("", text)) is not None


def last_expression(text: str) -> str | None:
    """Return the last formula between math delimiters or the last number in `text` that is not denied."""
    text = _REMARK.sub("", _CALCULATOR.sub("", with_ascii_signs(text)))
    end, formula = last_formula(text)
    return last_number(text, end) or formula


def last_formula(text: str) -> tuple[int, str | None]:
    """Return where the last formula between math delimiters ends, and the formula; -1 and None without one."""
    end = -1
    formula = None
    for opening, closing in _DISPLAY:
        stop = text.rfind(closing)
        if closing == "$":
            stop = last_dollar(text, len(text))
        start = text.rfind(opening, 0, stop) if stop > 0 else -1
        if opening == "$" and stop > 0:
            start = last_dollar(text, stop)
        content = text[start + len(opening) : stop].strip() if start >= 0 else ""
        if content and len(content) <= MAX_ANSWER and not has_words(content) and stop > end:
            end = stop
            formula = content
    return end, formula


def last_dollar(text: str, end: int) -> int:
    r"""Return the position of the last `$` before `end` that is no `\$`, or -1."""
    position = text.rfind("$", 0, end)
    while position > 0 and text[position - 1] == "\\":
        position = text.rfind("$", 0, position)
    return position


def last_number(text: str, start: int) -> str | None:
    """Return the last number, sum or list of numbers after `start` that is neither denied nor a side of an equation."""
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
        if _EQUATION_BEFORE.search(before):
            return None
        return _GLUED_UNIT.sub(" ", steps.strip())
    return date
