"""Extract the answer from a chain of equations at the end of a completion.

For `I = V/R = 12 V / 4 Ω = 3 A`, the answer is `I = 3 A`.
"""

import re

from grpo_ext.rewards.notation import plain
from grpo_ext.rewards.quantity import (
    CURRENCY_SIGNS,
    THOUSANDS_COMMA,
    UNIT_NAMES,
    arithmetic,
    number,
    split_unit,
)
from grpo_ext.rewards.structure import alternatives, brackets, chain, is_name

MAX_SENTENCE = 600  # characters of the sentence that ends with a chain
MAX_SIDE = 200  # characters of the last side
MAX_ANSWER = 300  # characters of the sides that are returned

_SENTENCE_END = re.compile(r"(?<!\.)[.!?;]\s|\n")
_PRICE = re.compile(r"\\\$|[=(*/+-]\s*\$\s?[-0-9.]+(?!.*\$)")
_DOLLAR = re.compile(r"\$\$?")
_DELIMITER = re.compile(r"\$\$?|\\[()\[\]]")
_TEXT = re.compile(r"\\(?:text[a-z]*|mathrm)\{([^{}]*)\}")
_FUNCTION = r"(?:arc)?(?:sin|cos|tan|log|ln|sqrt|pi)"
_WORD = re.compile(
    rf"(?<![\\A-Za-z0-9}}])(?!(?:{_FUNCTION}|{UNIT_NAMES}|in|[A-Z]{{2,4}}|d[a-z])(?![A-Za-z]))"
    r"[A-Za-z]{2,}(?![A-Za-z^_(])"
)
_UNREAD = re.compile(rf"!$|[^\x00-\x7f√{CURRENCY_SIGNS}]")  # `12!` may be emphasis
_BREAK = re.compile(rf"{_WORD.pattern}['’:,]*|[,:]\s|[⇒→⟹∴⟺]|\\(?:Rightarrow|implies|iff|to)\b")
_LISTED = re.compile(r"(?:[,;]|\b(?:and|or))\s*\Z")
_HEDGED = re.compile(
    r"\b(?:not|never|no|if|unless|suppose|assume|maybe|perhaps|possibly|or|than|instead|wrong"
    r"|at least|at most|check)\b|n't\b",
    re.IGNORECASE,
)
_APPROXIMATE = re.compile(
    r"\\(?:approx|sim|simeq|cong|ne|le|ge|pm)(?![A-Za-z])|[~≈<>]|\.\.\.|\\[cl]?dots"
)
_PRODUCT = re.compile(r"\s*[A-Za-z]{2,4}\s*")  # m a, l w h
_OPERATOR_FIRST = re.compile(r"[+*/^×÷_)]|\\(?:times|cdot|div)(?![A-Za-z])")
_COMMAND = re.compile(rf"\\[A-Za-z]+|\b{_FUNCTION}\b")
_UNIT = re.compile(
    rf"(?<=[0-9)}}])\s(?:{UNIT_NAMES}|in)(?![A-Za-z])(?:\s?/\s?(?:{UNIT_NAMES})(?![A-Za-z]))?"
)
_LETTER = re.compile(r"[A-Za-z]")
_VALUE = re.compile(r"[0-9]|\\(?:pi|infty|frac|sqrt)")


def ending_chain(text: str) -> str | None:
    """Return the answer from a chain of equations at the end of `text`, or `None` if there is none.

    The answer is the last side with its unit. It is preceded by the first side, if that is a symbol
    such as `I` or `f(2)`, and by the numeric sides that must equal the gold answer as well (see
    `is_evidence`). All other sides are dropped: the answer is `I = 3 A` for
    `I = V/R = 12 V / 4 Ω = 3 A`.

    Return `None` for an equation that must be solved for an unknown, for a list of equations, for a
    chain after a word such as "not", "or" or "if", and for a chain whose last side is not a single
    value. Also return `None` if the last sentence contains a price in `$` or an unclosed formula,
    or is longer than `MAX_SENTENCE`, or if the answer is longer than `MAX_ANSWER`.

    Args:
        text: the text, after `with_ascii_signs` has converted its signs.
    """
    sentence = _SENTENCE_END.split(text.rstrip(" \t\r\n.*"))[-1]
    has_open_formula = len(_DOLLAR.findall(sentence)) % 2 == 1
    if len(sentence) > MAX_SENTENCE or has_open_formula or _PRICE.search(sentence):
        return None
    sentence = _TEXT.sub(r" \1 ", _DELIMITER.sub(" ", sentence))
    clause = last_clause(sentence)
    if clause is None:
        return None
    has_name_in_words = len(clause) > 1 and not clause[0]  # `Total cost = 3 * 4 = 12`
    sides = [plain(side) for side in clause[int(has_name_in_words) :]]
    core, unit = split_unit(sides[-1])
    if not is_value(core) or not all(sides) or _OPERATOR_FIRST.match(sides[0]):
        return None
    first_sides = sides[:-1]
    name = sides[0] if is_name(sides[0]) else None
    is_named = name is not None or has_name_in_words
    if not is_named and not is_computation(first_sides, core, unit is not None):
        return None
    answer_sides = []
    for side in first_sides:
        if side == name or is_evidence(side, sides[-1]):
            answer_sides.append(side)
    answer = " = ".join([*answer_sides, sides[-1]])
    if len(answer) > MAX_ANSWER:
        return None
    return answer


def last_clause(sentence: str) -> list[str] | None:
    """Return the sides of the chain that ends a sentence, without the words before the chain.

    The first side is "" if words directly precede the first `=`, as in `Total cost = 12`. Return
    `None` if the sentence does not end in a chain whose only relation is `=`, if the last side
    contains a sign such as `≈`, or if the chain is preceded by a word such as "not" or "maybe" or
    by another equation of a list.
    """
    sides, operators = chain(sentence)
    if {*operators} != {"="} or _APPROXIMATE.search(sides[-1]):
        return None
    clause: list[str] = []
    for position, side in reversed(list(enumerate(sides))):
        is_last = position == len(sides) - 1
        is_product = position > 0 and _PRODUCT.fullmatch(side) is not None
        start = 0
        if not is_last and not is_product:
            start = last_break(side)
        clause.insert(0, side[start:].strip())
        if start == 0:
            continue
        before = " = ".join((*sides[:position], side[:start]))
        is_listed = "=" in before and _LISTED.search(before) is not None
        if is_listed or _HEDGED.search(before):
            return None
        return clause
    return clause


def last_break(side: str) -> int:
    """Return the offset after the last word, comma, colon or arrow outside brackets.

    Return 0 if there is none.
    """
    last = 0
    for match in _BREAK.finditer(side):
        if closes_brackets(side[: match.end()]):
            last = match.end()
    return last


def closes_brackets(text: str) -> bool:
    """Return whether `text` closes as many brackets as it opens."""
    return sum(map(text.count, "([{")) == sum(map(text.count, ")]}"))


def is_value(core: str) -> bool:
    """Return whether a last side, without its unit, is a single number, formula or tuple.

    Return `False` if it has more than `MAX_SIDE` characters, contains a word, ends with `!`, or
    contains a character that cannot be parsed.
    """
    if not _VALUE.search(core) or len(core) > MAX_SIDE or _UNREAD.search(core):
        return False
    if _WORD.search(core):
        return False
    if number(core) is not None or brackets(core) is not None:
        return True
    return closes_brackets(core) and len(alternatives(core)) == 1


def is_computation(first_sides: list[str], core: str, has_unit: bool) -> bool:
    """Return whether a chain computes its last side, rather than being an equation to solve.

    Args:
        first_sides: the sides before the last one; none of them is a name for the value.
        core: the last side without its unit.
        has_unit: whether the last side has a unit.
    """
    text = " ".join(first_sides)
    if has_symbol(core):
        return len(first_sides) > 1 and has_symbol(first_sides[0])
    without_units = _UNIT.sub("", text)
    if without_units != text and not has_unit:
        return False
    return not has_symbol(without_units)


def has_symbol(formula: str) -> bool:
    return _LETTER.search(_COMMAND.sub("", formula)) is not None


def is_evidence(side: str, last: str) -> bool:
    """Return whether a side is kept in the answer, so that the gold answer must equal it as well.

    The side must contain a value, but no symbol and no approximation, and the last side must be a
    number. If this number is a decimal, a side is not kept if it cannot be evaluated, or differs
    from the number by at most one unit of the last decimal place. A side with commas between
    thousands is not kept if it equals the number.
    """
    is_readable = not _UNREAD.search(side) and not _APPROXIMATE.search(side)
    if has_symbol(side) or not is_readable or not _VALUE.search(side):
        return False
    value = number(last)
    if value is None:
        return False
    without_commas = THOUSANDS_COMMA.sub("", side)
    measured = number(without_commas) or arithmetic(without_commas)
    if measured is None:
        return not value.place
    agrees = abs(measured.value - value.value) <= value.place
    can_differ = value.place == 0 and without_commas == side
    return can_differ or not agrees
