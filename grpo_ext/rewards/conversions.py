"""Recognize answers that repeat a quantity of the question instead of converting it.

For example, `72 km/h` repeats the quantity if the question asks for the speed in m/s.
"""

import re
from fractions import Fraction

from grpo_ext.rewards.notation import plain
from grpo_ext.rewards.quantity import (
    DECIMAL,
    UNIT_NAMES,
    WORDED,
    Number,
    Unit,
    number,
    split_unit,
)
from grpo_ext.rewards.structure import chain, is_name

Quantity = tuple[Fraction, Unit]

_FONT = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\$|(?<!\\)\\[,;:! ]|~")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|°")
_COMMA = re.compile(r"\{,\}")
_UNIT = rf"(?:(?:square|cubic) )?(?:{UNIT_NAMES})(?:\^\{{?[23]\}}?)?(?![A-Za-z])"
_AMOUNT = rf"(?:[0-9]+ [0-9]+/[0-9]+|[0-9]+/[0-9]+|{DECIMAL}|{WORDED})"
_MEASURE = rf"{_AMOUNT}[ -]{{0,3}}{_UNIT}(?:(?: ?/ ?| per ){_UNIT})?"
_QUANTITY = re.compile(rf"(?<![0-9A-Za-z.,/]){_MEASURE}(?:(?:,? and |, | +){_MEASURE})?")
_ASKS_UNIT = re.compile(rf"\b(?i:how many|number of|in|into|to)\s+(?!(?:a|s)\b){_UNIT}")
_CONVERTS = re.compile(r"\bconvert\b|\bchange \$?[0-9]", re.IGNORECASE)
_PRICE = re.compile(rf"\$ ?{DECIMAL}")
_NUMERAL = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{3}){0,9})?(?:\.[0-9]{1,40})?(?<=[0-9])(?![0-9])")
_OPERATION = re.compile(r"\\(?:times|cdot)(?![A-Za-z])|(?<!^)[*^!+]")


def measured_text(text: str) -> str:
    """Replace LaTeX fonts, spaces, thousands separators and degree signs with plain text."""
    text = _SPACE.sub(" ", _FONT.sub(r" \1 ", _COMMA.sub(",", text)))
    return _DEGREE.sub(" degree", text)


def stated_quantities(text: str) -> frozenset[Quantity]:
    """Return the quantities in a question: amounts with a unit of measure, and prices in $."""
    measures = _PRICE.findall(text)
    for match in _QUANTITY.finditer(measured_text(text)):
        measures.append(match[0].replace("-", " "))
    quantities = set()
    for measure in measures:
        amount = number(plain(measure))
        if amount is not None and amount.unit is not None:
            quantities.add((amount.value, amount.unit))
    return frozenset(quantities)


def stated_numbers(text: str) -> frozenset[Fraction]:
    """Return the integers and decimals that are written in digits in a question."""
    numerals = [match[0] for match in _NUMERAL.finditer(_COMMA.sub(",", text)) if match[0]]
    return frozenset(Fraction(numeral.replace(",", "")) for numeral in numerals)


def asks_for_unit(text: str) -> bool:
    """Return whether a question names the unit of its answer: `in meters`, `how many hours`."""
    return _ASKS_UNIT.search(measured_text(text)) is not None


def asks_to_convert(text: str) -> bool:
    return _CONVERTS.search(text) is not None


def repeats_quantity(quantities: frozenset[Quantity], gold: str, answer: str) -> bool:
    """Return whether all quantities in an answer are in the question and differ from `gold`.

    The answer is split at its relation signs, and sides that are names, such as `v` in
    `v = 72 km/h`, are ignored. Return `False` if no other side is left, or if one of the other
    sides is not a number with a unit.

    Args:
        quantities: the quantities in the question (see `stated_quantities`).
        gold: the gold answer.
        answer: the answer to check.
    """
    values = [side for side in chain(answer).sides if not is_name(side)]
    measures = [number(value) for value in values]
    expected = number(gold)
    for measure in measures:
        if (
            measure is None
            or measure.unit is None
            or (measure.value, measure.unit) not in quantities
        ):
            return False
        if expected is not None and is_same_measure(expected, measure):
            return False
    return bool(measures)


def is_same_measure(expected: Number, measure: Number) -> bool:
    """Return whether two numbers have equal values and, if `expected` has a unit, equal units.

    Units are not converted.
    """
    return expected.value == measure.value and expected.unit in (None, measure.unit)


def has_other_unit(gold: str, answer: str) -> bool:
    """Return whether two answers have different units, as in `20 m/s` and `72000 m/h`.

    Return `False` if either of them is not a number with a unit.
    """
    expected = number(gold)
    measure = number(answer)
    if expected is None or measure is None:
        return False
    return None not in (expected.unit, measure.unit) and expected.unit != measure.unit


def repeats_number(numbers: frozenset[Fraction], gold: str, answer: str) -> bool:
    r"""Return whether the answer repeats a number of the question, but `gold` is a formula.

    Examples are the answer 60 if the gold answer is `2^2 \cdot 3 \cdot 5`, and 45000 if it is
    `4.5 \times 10^4`.

    Args:
        numbers: the numbers in the question.
        gold: the gold answer.
        answer: the answer to check.
    """
    numeral = answer.strip("$ ")
    if not numeral or _NUMERAL.fullmatch(numeral) is None:
        return False
    formula, _ = split_unit(gold)  # the exponent of cm^2 is not an operation
    is_stated = Fraction(numeral.replace(",", "")) in numbers
    return is_stated and _OPERATION.search(formula) is not None
