r"""Find the last formula or number in text, skipping values that the text rules out ("not 5")."""

import re

from grpo_ext.rewards.asides import without_remarks
from grpo_ext.rewards.dates import DATE
from grpo_ext.rewards.ending_chain import ending_chain
from grpo_ext.rewards.notation import with_ascii_signs, with_short_units, without_quantifier
from grpo_ext.rewards.quantity import CURRENCY_SIGNS, DECIMAL, MULTIPLE, UNIT_NAMES
from grpo_ext.rewards.structure import chain, is_name, split

MAX_ANSWER = 300  # characters of an answer
MAX_FORMULA = 250  # characters of a formula without delimiters
MAX_FORMULAS = 20  # formulas joined into one list
WINDOW = 160  # the last number begins at most this many characters before the last digit
_DATE_ALONE = re.compile(DATE)
_IN_COMPOUND = re.compile(r"-[A-Za-z]{2}")  # 100-meter
_MARKED = r"[0-9][0-9.,]*(?:[_'’`^][0-9]+)+"  # 72_8, 7'2: not numbers, but matched as a whole
_SIGN = r"(?:(?i:negative|minus) )?[-+]?"
_PLAIN_NUMBER = rf"[{CURRENCY_SIGNS}]?(?:[0-9]+ [0-9]+/[0-9]+|{DECIMAL}(?:[eE][-+]?[0-9]{{1,2}})?)"
# s, s^2, s^{-2}, second squared, square inch
_UNIT = (
    rf"(?:(?:square|cubic) )?(?:{UNIT_NAMES}|mph|in(?=\^\{{?[23]))(?![A-Za-z])"
    r"(?:\^(?:-?[1-4]|\{-?[1-4]\})| squared| cubed)?"
)
# kg/m^3, grams per cubic centimeter, N \cdot m, m s^-2
_UNITS = rf"{_UNIT}(?:(?: ?/ ?| per | ?(?:\\cdot|\*) ?| (?=[A-Za-z]+[/^])){_UNIT}){{0,3}}"
_SUFFIX = (
    rf"(?:\s?\\?%|\s?{_UNITS}|\sK(?![A-Za-z])|\s?(?i:[ap]\.?m)\b\.?"
    rf"|\s{MULTIPLE}\b)?"
)
_ONE = rf"(?:{DATE}|{_MARKED}|{_SIGN}{_PLAIN_NUMBER}{_SUFFIX})"
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
    r"(?:\bnot|n't|\bnever|\b(?:any|no)thing but|\bthan|\bbelow|\babove|\binstead of"
    r"|\bat (?:least|most)"
    r"|(?<!add)(?<!dds)(?<!ing) up to"
    r"|\bexcept|\bexcluding|\bnor|\bneither|\b(?i:maybe|perhaps|possibly)"
    r"|\b(?i:step|case|part|equation|problem|question|figure|page|example))\s*$"
)
# `12.5 items, or about 12`
_ALTERNATIVE = re.compile(rf"[0-9][^.!?\n]{{0,40}}\b(or) (?:{_HEDGE} )?$")
_DENIED_AFTER = re.compile(r"\s*(?:(?:is|was|are) )?(?:not|wrong|incorrect|false|impossible)\b")
_DISPLAY = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_NAMED = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")  # \text{apples}, \begin{pmatrix}
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
_SUM = re.compile(r"-?[a-z](?: ?[-+*/] ?[0-9a-z.]+)+")  # `x + 5`, `v / 2`
_IS_BEFORE = re.compile(r"\b(?:is|equals) ?$")
_OPERAND = re.compile(
    r"[0-9]|\\(?:pi|infty|emptyset)|√|[a-zA-Z]\s?[-+*/^=<>]|[-+*/^=<>]\s?[a-zA-Z]"
)
_ARROW = re.compile(r"\\(?:Rightarrow|implies|iff|Longrightarrow|Leftrightarrow)(?![A-Za-z])|[⇒⟹]")
_UNIT_AFTER = re.compile(rf" ?({_UNITS})")
# a collection, a matrix, text, a name, a percentage or degrees: a unit after it adds nothing
_WITHOUT_UNIT = re.compile(
    r"[(\[].*,.*[)\]]|\\[{].*|\\(?:begin|text)\{.*|[A-Za-z]|.*(?:%|\\circ\}?)", re.DOTALL
)
_UNIT_OF_VALUE = re.compile(rf"(?<=[0-9)}}\]])\s?{_UNITS}[ .,]*")
_TIMES_TEN = re.compile(r"(?<=[0-9]) x (?=10\^)")  # 3.0 x 10^8
_SHARE_OF = re.compile(rf"(?:{DECIMAL}\\?%|[0-9]+/[0-9]+) of \$?{DECIMAL}(?= ?=)")
# `2 cartons of 1L milk`: the size of the counted items is not an answer
_SIZE_OF_COUNTED = re.compile(
    rf"(?<![0-9A-Za-z.,/])({DECIMAL} [a-z]{{3,}}) of {DECIMAL}[ -]?(?:{UNIT_NAMES})"
    r"(?= (?!(?:and|are|as|at|but|by|deep|each|every|for|from|high|in|is|long|of|on|or|per|so|tall"
    r"|than|that|then|to|was|were|which|wide|with)\b)[a-z]{3,})"
)
_BLANKS = re.compile(r"[ \t]{2,}")
_NUMBER_IN_BRACKETS = re.compile(r"\([0-9]+\)")
# between the items of a list; the comma in 13,520 does not match
_SEPARATOR = re.compile(r",?\s(?:and|or)\s|(?<![0-9]),\s?|,(?![0-9]{3}(?![0-9]))\s?")
_SEPARATOR_AT_END = re.compile(r",?\s(?:and|or)\s?$")
_REASON_BEFORE = re.compile(r"\b(?:since|because|as|given(?: that)?)\s*\Z", re.IGNORECASE)
_SEPARATOR_BEFORE = re.compile(r"\s*(?:[,;]|,?\s(?:and|or))\s*\Z")
# cm$^2$
_POWER_OF_UNIT = re.compile(rf"\b({UNIT_NAMES}|in) ?(?:\$|\\\()(\^\{{?[23]\}}?)(?:\$|\\\))")
_GLUED_UNIT = re.compile(rf"(?<=[0-9])(?=(?:{UNIT_NAMES})$)")


def last_expression(text: str) -> str | None:
    """Return the last formula or number in `text` that is not ruled out; `None` if there is none.

    A value is ruled out by words such as "not" before it or "is wrong" after it. If the last value
    follows "or" (`12 or 13`), it is returned together with the value before "or"; `not 5 or 6`
    rules out both. Also return `None` if the last formula in math delimiters is ruled out and no
    value follows it, even if there are values before it.
    """
    text = _TIMES_TEN.sub(r" \\times ", with_short_units(with_ascii_signs(text)))
    text = _POWER_OF_UNIT.sub(r"\1\2", text)
    text = _SIZE_OF_COUNTED.sub(r"\1", _SHARE_OF.sub("", without_remarks(text)))
    text = without_quantifier(text.rstrip(" \t\r\n."))
    value = ending_chain(text)
    if value is not None:
        return value
    span = last_formula(text)
    end = -1 if span is None else span[1]
    unit = None if span is None else _UNIT_AFTER.match(text, end)
    if unit is not None:
        end = unit.end()
    formula = undelimited(text, end)
    if formula is not None:
        return formula
    number = last_number(text, end)
    if number is not None or span is None or _DENIED.search(text[: span[0]][-60:]):
        return number
    if _DENIED_AFTER.match(text, end):
        return None
    formula = without_delimiters(text[slice(*span)])
    if unit is not None and not _WITHOUT_UNIT.fullmatch(formula):
        formula = f"{formula} {unit[1]}"
    alternative = _ALTERNATIVE.search(text[: span[0]])
    if alternative is None:
        return formula
    earlier = last_expression(text[: alternative.start(1)])
    return None if earlier is None else f"{earlier}, or {formula}"


def undelimited(text: str, start: int) -> str | None:
    """Return the answer in the last formula after `start` that is not in math delimiters.

    Only the last `MAX_ANSWER` characters of `text` are searched. A chain such as `x = 3 + 4 = 7` is
    reduced to its name and its last side; a unit is kept. Return `None` if there is no such
    formula, or if the formula is ruled out ("not 5", "5 is wrong"), is longer than `MAX_FORMULA`,
    has unmatched brackets, or is left to `last_number`, such as `x = 2`.
    """
    text = _BLANKS.sub(" ", text[max(start, len(text) - MAX_ANSWER, 0) :])
    units = [unit.span() for unit in _UNIT_OF_VALUE.finditer(text)]
    formulas = []
    for formula in _MATH.finditer(text):
        is_unit = any(start <= formula.start() and formula.end() <= end for start, end in units)
        if _OPERAND.search(formula[0]) and not is_unit:
            formulas.append(formula)
    if not formulas:
        return None
    last = formulas[-1]
    if _DENIED.search(text[: last.start()]) or _DENIED_AFTER.match(text, last.end()):
        return None
    run = _SEPARATOR_AT_END.sub("", last[0]).strip(" ,.=")
    if len(run) > MAX_FORMULA or not is_balanced(run):
        return None
    parts = split(run, _SEPARATOR)
    if len(parts) > 1 and all(map(is_named, parts)):
        return run
    is_sum = _SUM.fullmatch(run) is not None and _IS_BEFORE.search(text[: last.start()]) is not None
    has_mark = is_sum or _MATH_MARK.search(run) is not None or run.count("=") > 1
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
    """Return the answer in a formula, followed by `unit`.

    A chain such as `x = 3 + 4 = 7` is reduced to its name and last side. Return `None` for any
    other equation that ends in a number, because `last_number` finds that number. A set in braces
    gets no unit, and its braces are escaped: `{1, 2}` becomes `\\{1, 2\\}`.
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
    """Return whether `text` is a single equation with a name on its left side, such as `x = 2`."""
    sides, operators = chain(text)
    return operators == ("=",) and is_name(sides[0])


def is_balanced(text: str) -> bool:
    """Return whether the brackets in a formula match, ignoring their kinds, as in `[0, 1)`."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def without_delimiters(formula: str) -> str:
    """Remove a formula's math delimiters, and everything through its last implication arrow.

    If there are no delimiters or several formulas, return the text unchanged.
    """
    for opening, closing in _DISPLAY:
        inner = formula.removeprefix(opening).removesuffix(closing)
        if len(inner) == len(formula) - len(opening + closing) and opening not in inner:
            return _ARROW.split(inner)[-1].strip()
    return formula


def last_formula(text: str) -> tuple[int, int] | None:
    """Return (start, end) of the last formula in math delimiters; `None` if there is none.

    If the formula is the last item of a list, the span covers the whole list, as in `$x = 1$ and
    $x = 2$`, up to `MAX_ANSWER` characters and `MAX_FORMULAS` further items. The items may be
    followed by the same unit: `$t = 1$ s and $t = 3$ s`. A reason at the beginning of the list is
    left out: `Since $x > 0$, $x = 2$`.
    """
    spans = delimited_spans(text, len(text))
    if not spans:
        return None
    start, end = max(spans, key=lambda span: span[1])
    unit = _UNIT_AFTER.match(text, end)
    behind_comma = None
    for _ in range(MAX_FORMULAS):
        separator = _SEPARATOR_BEFORE.search(text, max(0, start - 20), start)
        if separator is None:
            break
        limit = separator.start()
        if unit is not None and text.endswith(unit[0], 0, limit):
            limit -= len(unit[0])
        joined = [begin for begin, stop in delimited_spans(text, limit) if stop == limit]
        if not joined or end - joined[0] > MAX_ANSWER:
            break
        if "," in separator[0]:
            behind_comma = start
        start = joined[0]
    if behind_comma is not None and _REASON_BEFORE.search(text, max(0, start - 20), start):
        return behind_comma, end
    return start, end


def delimited_spans(text: str, limit: int) -> list[tuple[int, int]]:
    """For each kind of math delimiters, return (start, end) of the last formula before `limit`.

    Kinds without such a formula are omitted.
    """
    spans = []
    for pair in _DISPLAY:
        span = delimited(text, limit, pair)
        if span is not None:
            spans.append(span)
    return spans


def delimited(text: str, limit: int, pair: tuple[str, str]) -> tuple[int, int] | None:
    """Return (start, end) of the last formula before `limit` that the delimiters `pair` enclose.

    The span includes the delimiters. Return `None` if there is no such formula, or if it is empty,
    longer than `MAX_ANSWER` or contains words.
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
    r"""Return the offset of the last `$` before `end` that is not escaped; -1 if there is none.

    Args:
        text: the text to search.
        end: the offset before which to search.
        closes: whether to look for a closing `$`. A `$` before a digit is then taken for the start
            of a price, and skipped unless it is at offset 0.
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
    """Return the last number, calculation or list of numbers after `start` that is not ruled out.

    Only values that begin at most `WINDOW` characters before the last digit are considered, and
    values of more than `MAX_ANSWER` characters are skipped. A date, or a number in a compound such
    as `100-meter`, counts only if there is no other value. A value that follows "or" is returned
    together with the value before it: `12, or 13`. Return `None` if there is no value, or if the
    last value is a side of an equation such as `x^2 - 4x = 5`.
    """
    last_digit = max(text.rfind(digit, start + 1) for digit in "0123456789")
    matches = list(_VALUES.finditer(text, max(start, last_digit - WINDOW, 0)))
    fallback = None
    for position, match in reversed(list(enumerate(matches))):
        before = text[max(0, match.start() - 60) : match.start()]
        if len(match[1]) > MAX_ANSWER or _DENIED.search(before):
            continue
        if _DENIED_AFTER.match(text, match.end()):
            continue
        # The answer may come before these: `$130 by June 2020`, `212 seconds for 100-meter races`
        if _DATE_ALONE.fullmatch(match[1]) or _IN_COMPOUND.match(text, match.end()):
            fallback = fallback or match[1]
            continue
        steps = match[1]
        if _OPERATOR_BEFORE.search(before):  # only 15 counts in `5 apples * 3 = 15`
            first_sides, sign, steps = steps.rpartition("=")
            before += first_sides + sign
        if _EQUATION_BEFORE.search(before):
            return None
        value = _GLUED_UNIT.sub(" ", steps.strip())
        if _ALTERNATIVE.search(before):
            earlier = matches[position - 1][1] if position else ""
            return f"{earlier}, or {value}"
        return value
    return fallback


def has_words(text: str) -> bool:
    r"""Return whether `text` contains a word of three or more letters other than "and".

    LaTeX commands do not count, and neither do words in their braces, as in `\text{apples}`.
    """
    return _WORD.search(_NAMED.sub("", text)) is not None
