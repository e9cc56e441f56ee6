r"""Find the text of the answer in a completion or gold solution.

docs/rewards.md says where the answer may be.
"""

import re

from grpo_ext.rewards.answers import last_answer, last_boxes, without_thoughts
from grpo_ext.rewards.asides import without_remarks
from grpo_ext.rewards.conclusion import with_conclusion
from grpo_ext.rewards.ending_chain import ending_chain
from grpo_ext.rewards.notation import with_ascii_signs, without_quantifier
from grpo_ext.rewards.quantity import DECIMAL, UNIT_NAMES, WORDED, with_digits
from grpo_ext.rewards.request import Request
from grpo_ext.rewards.structure import chain, is_name, split

MAX_ANSWER = 300  # characters of an answer
MAX_TAIL = 5_000  # characters at the end that are searched for an answer without tag or box
MAX_FORMULA = 250  # characters of a formula without delimiters
MAX_FORMULAS = 20  # formulas joined into one list
WINDOW = 160  # the last number begins at most this many characters before the last digit

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_DATE = (
    rf"(?:{_DAY} (?:of )?{_MONTH}(?:,? [0-9]{{4}})?|{_MONTH} {_DAY}(?:,? "
    rf"[0-9]{{4}})?|{_MONTH} [0-9]{{4}})"
)
_DATE_ALONE = re.compile(_DATE)
_MARKED = r"[0-9][0-9.,]*(?:[_'’`^][0-9]+)+"  # 72_8, 7'2: not numbers, but read as a whole
_SIGN = r"(?:(?i:negative|minus) )?[-+]?"
_PLAIN_NUMBER = rf"[$€£]?(?:[0-9]+ [0-9]+/[0-9]+|{DECIMAL}(?:[eE][-+]?[0-9]{{1,2}})?)"
_PER_UNIT = rf"(?:(?: ?/ ?| per )(?:{UNIT_NAMES})(?![A-Za-z]))?"
_SUFFIX = (
    rf"(?:\s?\\?%|\s?(?:{UNIT_NAMES})(?![A-Za-z])(?:\^[23])?{_PER_UNIT}|\s?[ap]\.?m\b\.?"
    r"|\s(?:hundred|thousand|million|billion|trillion|dozen)\b)?"
)
_ONE = rf"(?:{_DATE}|{_MARKED}|{_SIGN}{_PLAIN_NUMBER}{_SUFFIX})"
_OPERATOR = (
    r"(?:\s?(?:[-+*/=×÷]|(?<![a-z]):|\\times|\\cdot)\s*|\s[x]\s|(?<=[0-9])x(?=[0-9])|\s(?:to|out "
    r"of|plus|minus|times)\s)"
)
_STEPS = rf"{_ONE}(?:{_OPERATOR}{_ONE})*"
_HEDGE = r"(?:about|around|maybe|perhaps|possibly)"
_VALUES = re.compile(
    rf"(?<![0-9A-Za-z.,_'’])({_STEPS}(?:(?:,? (?:and|or) (?:{_HEDGE} )?|, |(?<=[a-z]) ){_STEPS})*)"
    r"(?![0-9A-Za-z]|[_'’^/:-][0-9])"
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bnever|\b(?:any|no)thing but|\bthan|\binstead of|\bat (?:least|most)"
    r"|(?<!add)(?<!dds)(?<!ing) up to"
    r"|\bexcept|\bexcluding|\bnor|\bneither|\b(?i:maybe|perhaps|possibly)"
    r"|\b(?i:step|case|part|equation|problem|question|figure|page|example))\s*$"
)
# `12.5 items, or about 12`
_ALTERNATIVE = re.compile(rf"[0-9][^.!?\n]{{0,40}}\b(or) (?:{_HEDGE} )?$")
_DENIED_AFTER = re.compile(r"\s*(?:(?:is|was|are) )?(?:not|wrong|incorrect|false|impossible)\b")
_STATED = re.compile(r"(?:####|\banswer\**\s*(?:is\b|:|=))[\s:*]*(.+)", re.IGNORECASE)
_BOLD_AT_END = re.compile(r"\*\*([^*]+)\*\*[\s.]*\Z")
_BOLD_WORDS = re.compile(r"\*\*([A-Za-z][A-Za-z '.-]*[A-Za-z])\*\*")
_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_REASON = re.compile(r",? (?:since|because|as|for)\b")
_UNCERTAIN = re.compile(
    r"\b(?:not|never|no|nor|neither|or|than|but|however|if|maybe|perhaps|possibly|might|could"
    r"|instead|rather"
    r"|unlike|except|wrong|incorrect|false|impossible|seems?|while|although|cannot)\b|n't\b|\?",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[0-9π∞\\$]")
_NUMERAL_IN_WORDS = re.compile(
    rf"((?i:negative|minus) )?({WORDED}|(?!(?i:one) ){WORDED} [a-z]{{3,}})"
)
_OPEN_BEFORE = re.compile(r"(?:\bor|\bnot|n't|\bthan|\bto|\bat (?:least|most)|\bmaybe)\s*$")
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
_VERDICT = re.compile(r"(yes|no|true|false)\b[,.;:-]", re.IGNORECASE)
_LONE_WORD = re.compile(r"[\s*().]*([A-Za-z]{1,30})[\s*().]*")
_WORD = re.compile(r"(?<![\\A-Za-z0-9])(?!and\b)[A-Za-z]{3,}")
# `x^2 - 4x + 3 = `: an equation for an unknown; its other side is not an answer
_UNKNOWN = r"(?:[0-9.]*(?<![A-Za-z])[b-hj-z](?:\^\{?[0-9]+\}?)?(?![A-Za-z]))"
_TERM = rf"(?:{_UNKNOWN}|[0-9.]+(?:\^[0-9]+)?)"
_EQUATION_BEFORE = re.compile(
    rf"(?=[^=]*[a-z])(?:{_TERM}\s?[-+*/]\s?)+{_TERM}\s*=\s*$"
    r"|(?:[0-9]+[a-z]|\b[a-z]\^\{?[0-9]+\}?)\s*=\s*$"
)
_OPERATOR_BEFORE = re.compile(r"(?:[-+*/×÷)]|(?<=\s)x)\s*$")
# Formulas without delimiters: `the area is 6√5`, `x = 2 and y = 3`, `the point (1, -2)`
_FUNCTION = r"(?:sqrt|sin|cos|tan|log|ln|pi)"
_SIGNS = r"-+*/_=>()\[\]{}|!√"
_MATH = re.compile(
    rf"(?:\\[A-Za-z]+\s?|\\[{{}}]|(?<![A-Za-z\\])(?:[A-Za-z](?!['’0-9])|{_FUNCTION})(?![A-Za-z])"
    rf"|(?<![A-Za-z]{{2}}\^)(?<![A-Za-z])[0-9.]+(?:,[0-9]{{3}})*|<(?!/)"
    rf"|(?<![A-Za-z]{{2}})\^|[{_SIGNS}]"
    rf"|\s(?=[{_SIGNS}<^\\])|(?<=[{_SIGNS}<^])\s(?!(?:and|or)\s[(\[])"
    r"|(?:,?\s(?:and|or)|,)\s?(?=(?:[A-Za-z]|[-(\[√0-9]|\\[a-z{])))+"
)
_MATH_MARK = re.compile(r"[√^(\[{]|\\[A-Za-z]+|[<>]|[0-9][a-z]")
_OPERAND = re.compile(
    r"[0-9]|\\(?:pi|infty|emptyset)|√|[a-zA-Z]\s?[-+*/^=<>]|[-+*/^=<>]\s?[a-zA-Z]"
)
_ARROW = re.compile(r"\\(?:Rightarrow|implies|iff|Longrightarrow|Leftrightarrow)(?![A-Za-z])|[⇒⟹]")
_UNIT_AFTER = re.compile(
    rf"\s?((?:{UNIT_NAMES})(?:\^[23])?(?:\s?(?:/|per)\s?(?:{UNIT_NAMES})(?:\^[23])?)?)(?![A-Za-z])"
)
_SHARE_OF = re.compile(rf"(?:{DECIMAL}\\?%|[0-9]+/[0-9]+) of \$?{DECIMAL}(?= ?=)")
_BLANKS = re.compile(r"[ \t]{2,}")
_NUMBER_IN_BRACKETS = re.compile(r"\([0-9]+\)")
_SEPARATOR = re.compile(r",?\s(?:and|or)\s|,\s?")
_SEPARATOR_BEFORE = re.compile(r"\s*(?:[,;]|,?\s(?:and|or))\s*\Z")
_CHOSEN = re.compile(r"\b(?i:answer|choice|option)\b(?i:\s+is)?[\s:*($]*([A-H])\b(?!\s[a-z])")
_LETTER = re.compile(r"\(([A-H])\)|(?:\*\*|^)\(?([A-H])(?:\)|[.:]|\*\*|\s*$)")
_OPTION_FIRST = re.compile(r"(?:\\text[a-z]*\{|[*(])*[A-H][)}*]*\s?[.:)]\s*\S")
_GLUED_UNIT = re.compile(rf"(?<=[0-9])(?=(?:{UNIT_NAMES})$)")


def find_answer(
    completion: str,
    *,
    has_choices: bool = False,
    in_words: bool = False,
    request: Request | None = None,
) -> str | None:
    """Return the text of the answer, at most `MAX_ANSWER` characters, or `None`.

    Args:
        completion: the text that a model wrote.
        has_choices: whether the question offers choices, so that the answer may be a letter.
        in_words: whether the gold answer is a text, so that the answer may be words in bold.
        request: what the question asks for; `None` if unknown.
    """
    text = without_thoughts(completion)
    answer = last_answer(text)
    if answer is not None and len(answer) > MAX_TAIL:
        return None
    if answer is not None:
        return boxed(answer) or piece_of(answer, in_words)
    in_box = boxed(text)
    if in_box is not None:
        return in_box
    tail = text[-MAX_TAIL:]
    letter = chosen_letter(tail) if has_choices else None
    in_bold = None
    if in_words and not _STATED.search(tail):
        in_bold = emphasised(tail, in_words=True) or bold_in_last_sentence(tail)
    if not in_words:
        tail = with_conclusion(tail, request or Request())
    return letter or in_bold or stated(tail, in_words) or lone_word(text)


def is_marked(completion: str) -> bool:
    """Return whether a tag, a box, `####` or "answer is" marks the answer of a completion."""
    text = without_thoughts(completion)
    has_answer = last_answer(text) is not None
    has_box = boxed(text) is not None
    is_stated = _STATED.search(text[-MAX_TAIL:]) is not None
    return has_answer or has_box or is_stated


def chosen_letter(text: str) -> str | None:
    """Return the last choice in the last line that is not blank, such as D in `Choice D) 10.`

    `None` if that line names no choice.
    """
    lines = text.strip().splitlines()
    if not lines:
        return None
    chosen = [match[1] for match in _CHOSEN.finditer(lines[-1])]
    named = [match[1] or match[2] for match in _LETTER.finditer(lines[-1])]
    letters = chosen or named
    if not letters:
        return None
    return letters[-1]


def lone_word(text: str) -> str | None:
    match = _LONE_WORD.fullmatch(text)
    if match is None:
        return None
    return match[1]


def boxed(text: str) -> str | None:
    """Return the content of the last box and of those before it that belong to the same list.

    `None` without a box, or if the content is empty or longer than `MAX_ANSWER`.
    """
    content = (last_boxes(text) or "").strip()
    if not 0 < len(content) <= MAX_ANSWER:
        return None
    return content


def stated(text: str, in_words: bool = False) -> str | None:
    """Return what follows the last `####` or "answer is"; `None` if it is withdrawn afterwards.

    Without such a mark, return the bold text at the end or the last formula or number.
    """
    statements = list(_STATED.finditer(text))
    if not statements:
        return emphasised(text) or last_expression(text)
    last = statements[-1]
    sentence = _SENTENCE.split(last[1], maxsplit=1)[0]
    after = text[last.start(1) + len(sentence) :]
    if not _WITHDRAWN.search(after):
        return piece_of(sentence, in_words)
    if _STATED.search(after):
        return stated(after, in_words)
    return None


def emphasised(text: str, *, in_words: bool = False) -> str | None:
    """Return the answer in bold at the end of a completion: `So **x = 2, y = 3**.`

    `None` without one. Bold words without a number count only with `in_words`. A number in words is
    written in digits and may be followed by one word, except `one`, which is also an article:
    `**One moment**`.
    """
    match = _BOLD_AT_END.search(text[-MAX_ANSWER:])
    if match is None:
        return None
    bold = match[1]
    if bold.rstrip().endswith(":"):
        return None
    numeral = _NUMERAL_IN_WORDS.fullmatch(bold.strip(" ."))
    if numeral is None:
        if not in_words and not _VALUE.search(bold):
            return None
        return piece_of(bold, in_words)
    if _OPEN_BEFORE.search(text[: match.start()]):
        return None
    sign = "-" if numeral[1] else ""
    return sign + with_digits(numeral[2])


def bold_in_last_sentence(text: str) -> str | None:
    """Return the only bold words of the last sentence.

    They must begin the sentence, or a reason must follow, as in `It is **green**, since two of five
    sections are.` Otherwise, return `None`, and also if the sentence has a word of denial, doubt or
    comparison.
    """
    sentence = _SENTENCE_END.split(text.strip().removesuffix("."))[-1]
    bold = _BOLD_WORDS.findall(sentence)
    if len(bold) != 1 or sentence.count("**") != 2 or _UNCERTAIN.search(sentence):
        return None
    before, _, after = sentence.partition(f"**{bold[0]}**")
    if before.strip() and not _REASON.match(after):
        return None
    return bold[0]


def piece_of(text: str, in_words: bool = False) -> str | None:
    """Return the formula or number in the text of an answer.

    A text that is not a sentence, or that has no formula or number, is returned whole; `None` if
    it is empty or longer than `MAX_ANSWER`. With `in_words`, a text that begins with `yes,`, `no,`,
    `true,` or `false,` yields that word.
    """
    text = with_ascii_signs(text.strip(" \t\r\n*")).removesuffix(".")
    statement = _STATED.search(text)
    if statement is not None:
        text = _SENTENCE.split(statement[1])[0]
    verdict = _VERDICT.match(text) if in_words else None
    if verdict is not None:
        return verdict[1]
    if is_sentence(text) and not _OPTION_FIRST.match(text):
        expression = last_expression(text)
        if expression:
            return expression
    if not 0 < len(text) <= MAX_ANSWER:
        return None
    return text


def is_sentence(text: str) -> bool:
    """Return whether an answer has words outside its formulas, other than `and`, `or` and units.

    An answer longer than `MAX_ANSWER` counts as a sentence.
    """
    if len(text) > MAX_ANSWER:
        return True
    outside, formulas = _FORMULA.subn(" ", text.replace(r"\$", ""))
    if not formulas:
        return has_words(text)
    unnamed = _NAMED.sub("", _UNIT_NAME.sub("", outside))
    return _WORD_BETWEEN.search(unnamed) is not None


def has_words(text: str) -> bool:
    """Return whether `text` has words of three or more letters besides "and" and LaTeX commands."""
    return _WORD.search(_NAMED.sub("", text)) is not None


def last_expression(text: str) -> str | None:
    """Return the last formula or number in `text` that the text does not deny, or `None`.

    If it is an alternative (`12 or 13`), it is returned together with the value before "or".
    """
    text = _SHARE_OF.sub("", without_remarks(with_ascii_signs(text)))
    text = without_quantifier(text.rstrip(" \t\r\n."))
    value = ending_chain(text)
    if value is not None:
        return value
    span = last_formula(text)
    end = -1 if span is None else span[1]
    formula = undelimited(text, end)
    if formula is not None:
        return formula
    number = last_number(text, end)
    if number is not None or span is None or _DENIED.search(text[: span[0]][-60:]):
        return number
    if _DENIED_AFTER.match(text, span[1]):
        return None
    formula = without_delimiters(text[slice(*span)])
    alternative = _ALTERNATIVE.search(text[: span[0]])
    if alternative is None:
        return formula
    return f"{last_expression(text[: alternative.start(1)])}, or {formula}"


def undelimited(text: str, start: int) -> str | None:
    """Return the last formula after `start` that is written without math delimiters.

    `None` if there is none, if it is denied or too long, or if `last_number` reads all of it.
    """
    text = _BLANKS.sub(" ", text[max(start, len(text) - MAX_ANSWER, 0) :])
    runs = [run for run in _MATH.finditer(text) if _OPERAND.search(run[0])]
    if not runs:
        return None
    last = runs[-1]
    if _DENIED.search(text[: last.start()]) or _DENIED_AFTER.match(text, last.end()):
        return None
    run = last[0].strip(" ,.=")
    if len(run) > MAX_FORMULA or not is_balanced(run):
        return None
    parts = split(run, _SEPARATOR)
    if len(parts) > 1 and all(map(is_named, parts)):
        return run
    has_mark = _MATH_MARK.search(run) is not None or run.count("=") > 1
    if not has_mark or _NUMBER_IN_BRACKETS.fullmatch(run):
        return None
    unit = ""
    unit_after = _UNIT_AFTER.match(text, last.end())
    if unit_after is not None:
        unit = f" {unit_after[1]}"
    if "=" in run:
        return value_of(parts[-1], unit)
    return value_of(run, unit)


def value_of(formula: str, unit: str) -> str | None:
    """Return the answer that a formula gives, followed by `unit`.

    A chain such as `x = 3 + 4 = 7` is reduced to its name and last side. `None` for other equations
    that end in a number, which `last_number` reads.
    """
    if formula.startswith("{"):
        return rf"\{formula[:-1]}\}}"
    sides, operators = chain(formula)
    if {*operators} != {"="}:
        return formula + unit
    has_name = is_name(sides[0])
    if has_name and len(sides) > 2:
        return f"{sides[0]} = {sides[-1]}{unit}"
    if _VALUES.fullmatch(sides[-1]):
        return None
    return formula + unit


def is_named(text: str) -> bool:
    """Return whether a text gives a value to a name: `x = 2`."""
    sides, operators = chain(text)
    return operators == ("=",) and is_name(sides[0])


def is_balanced(text: str) -> bool:
    """Return whether all brackets in a formula match, whatever their kinds, as in `[0, 1)`."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def without_delimiters(formula: str) -> str:
    """Remove the math delimiters around a formula, and what precedes the last arrow in it.

    A text with several formulas is returned unchanged.
    """
    for opening, closing in _DISPLAY:
        inner = formula.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(formula) - len(opening + closing) and opening not in inner:
            return _ARROW.split(inner)[-1].strip()
    return formula


def last_formula(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the last formula between math delimiters, or `None`.

    Formulas before it in the same list are included: `$x = 1$ and $x = 2$`.
    """
    spans = delimited_spans(text, len(text))
    if not spans:
        return None
    start, end = max(spans, key=lambda span: span[1])
    for _ in range(MAX_FORMULAS):
        separator = _SEPARATOR_BEFORE.search(text, max(0, start - 20), start)
        if separator is None:
            break
        limit = separator.start()
        joined = [begin for begin, stop in delimited_spans(text, limit) if stop == limit]
        if not joined or end - joined[0] > MAX_ANSWER:
            break
        start = joined[0]
    return start, end


def delimited_spans(text: str, limit: int) -> list[tuple[int, int]]:
    """Return (start, end) of the last formula before `limit` in each pair of delimiters."""
    spans = []
    for pair in _DISPLAY:
        span = delimited(text, limit, pair)
        if span is not None:
            spans.append(span)
    return spans


def delimited(text: str, limit: int, pair: tuple[str, str]) -> tuple[int, int] | None:
    """Return (start, end) of the last formula before `limit` in this pair of delimiters.

    The delimiters are included. `None` if there is no such formula, or if it is empty, longer than
    `MAX_ANSWER` or contains words.
    """
    opening, closing = pair
    if opening == "$":
        stop = last_dollar(text, limit, closes=True)
        start = last_dollar(text, max(stop, 0), closes=False)
    else:
        stop = text.rfind(closing, 0, limit)
        start = text.rfind(opening, 0, max(stop, 0))
    if start < 0:
        return None
    content = text[start + len(opening) : stop].strip()
    if not content or len(content) > MAX_ANSWER or has_words(content):
        return None
    return start, stop + len(closing)


def last_dollar(text: str, end: int, *, closes: bool) -> int:
    r"""Return the position of the last `$` before `end` that is not `\$`, or -1.

    With `closes`, a `$` before a digit is skipped: it is a price.
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
    """Return the last number, arithmetic or list of numbers after `start` that is not denied.

    A date counts only if there is no other number, and an alternative (`12 or 13`) is returned
    together with the value before "or". `None` if there is no number, or if the last one is a side
    of an equation for an unknown.
    """
    last_digit = max(text.rfind(digit, start + 1) for digit in "0123456789")
    matches = list(_VALUES.finditer(text, max(start, last_digit - WINDOW, 0)))
    date = None
    for position, match in reversed(list(enumerate(matches))):
        before = text[max(0, match.start() - 60) : match.start()]
        if len(match[1]) > MAX_ANSWER or _DENIED.search(before):
            continue
        if _DENIED_AFTER.match(text, match.end()):
            continue
        if _DATE_ALONE.fullmatch(match[1]):  # the answer may come before it: `$130 by June 2020`
            date = date or match[1]
            continue
        steps = match[1]
        if _OPERATOR_BEFORE.search(before):  # `5 apples * 3 = 15` begins in words: only 15 counts
            first_sides, sign, steps = steps.rpartition("=")
            before += first_sides + sign
        if _EQUATION_BEFORE.search(before):
            return None
        value = _GLUED_UNIT.sub(" ", steps.strip())
        if _ALTERNATIVE.search(before):
            earlier = matches[position - 1][1] if position else ""
            return f"{earlier}, or {value}"
        return value
    return date
