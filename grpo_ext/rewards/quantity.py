"""Parse numbers exactly, in the notations that people use.

Examples: `-1,234.50`, `$5`, `1 1/2`, `6.63 \\times 10^{-34}` and `72 hours 30 minutes`.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from grpo_ext.common.files import data_lines
from grpo_ext.rewards.expression import ExpressionError, evaluate

CURRENCY_SIGNS = "$€£₹¥"
MAX_UNIT = 60  # characters of a unit of measure
TOLERANCE = Fraction(1, 10**6)  # relative difference that is accepted for decimals
_KINDS: dict[str, str] = {}  # kind of unit -> the kinds that it is composed of
_SIZES: dict[str, tuple[str, Fraction]] = {}  # name of a unit -> its kind and size
for _row in data_lines("grpo_ext.rewards", "units.txt"):
    _kind, _, _line = _row.partition(": ")
    _kind, _, _made_of = _kind.partition(" = ")
    _KINDS[_kind] = _made_of or _kind
    for _names in map(str.split, _line.split(", ")):
        for _name in _names[:-1]:
            _SIZES[_name] = (_kind, Fraction(_names[-1]))
            if len(_name) > 1:
                _SIZES[f"{_name}s"] = _SIZES[_name]


def alternation(names: set[str]) -> str:
    """Return a regular expression that matches any of the names, trying longer names first.

    The names are not in a group; enclose the expression in `(?:...)` to combine it with others.
    """
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


UNIT_NAMES = alternation({*_SIZES} - {"in", "K"})  # `20K` is a number of thousands
# Names of units that a question may ask for: `in hours`, but not `in hour three` or `in s`.
ASKED_NAMES = alternation(
    {name for name in _SIZES if name.endswith("s") and len(name) > 2}
    | {"feet", "inches", "hertz", "mm", "cm", "km", "kg", "mg", "mL", "ml", "kJ", "mph"}
)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?![0-9])"
DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
_POWER = (
    r"(?:[eE]([-+]?[0-9]{1,3})"
    r"|\s*(?:\\times|\\cdot|\*|x)\s*10\s?\^\s?(?:\{([-+]?[0-9]{1,3})\}|(-?[0-9]{1,3})))"
)
_NUMBER = re.compile(
    rf"([-+]?)\s*[{CURRENCY_SIGNS}]?(-?)"
    rf"(?:(?:([0-9]+)\s+)?([0-9]+)\s?[/:]\s?(-?[0-9]+)|({DECIMAL}){_POWER}?)"
)
_FRAC = re.compile(r"\\frac\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))")
_PERCENT = re.compile(r"\s*(?:%|per ?cent)$")
_UNKNOWN = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_UNIT_START = re.compile(r"(?<=[^A-Za-z\\])[A-Za-z¢Ωµ]")
_FACTOR = re.compile(
    rf"(^| ?/ ?| per | ?\\cdot ?(?![A-Za-z]{{3}})| ?\* ?| )\(?([A-Za-zΩµ]+|[¢{CURRENCY_SIGNS}])"
    r"(?: ?\^ ?(?:\{ ?(-?[1-4]) ?\}|(-?[1-4])))?\)?"
)
_RATE = re.compile(r"(?<=[0-9]) ?(?:/|\bper)$")
_FRACTION_OF_UNITS = re.compile(
    r" ?\\frac ?\{ ?([A-Za-z]+(?:\^[23])?) ?\} ?\{ ?([A-Za-z]+(?:\^[23])?) ?\}$"
)
# Names that may be symbols instead of units: `m`, `m g`.
_SYMBOLS = re.compile(r"[a-z](?:(?: ?\\cdot ?| ?\* ?| )[A-Za-z])+|[A-Za-z](?:\^\{?[1-4]\}?)?")
# Words that name what is counted: "10 paper clips". The words in `_NO_LABEL` change the value: "10
# thousand", "2 or 3". In "24 times", the value stays the same.
_LABEL = re.compile(r"(?<=[0-9A-Za-z)}%!]) +(?:(?:per|of|in) )?[A-Za-z]{3,}[A-Za-z' ./-]*$")
_NO_LABEL = re.compile(
    r"\b(?:or|not|and|to|mod|times(?! *$)|plus|minus|over|choose|squared|cubed|factorial|hundred|"
    r"thousand|million|billion|trillion|dozen|score|half|halves|thirds?|quarters?|below|under|"
    r"short|less|more|wrong|incorrect|false|never|no|maybe|perhaps|except|if|unless|when|"
    r"abc|def|pqr|rst|uvw|xyz|abcd|[a-z]*teen|[a-z]*ty)\b"
)
_FORMULA_BEFORE_LABEL = re.compile(r"[0-9\\]")
MULTIPLIERS = {
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
MULTIPLE = rf"(?:{'|'.join(MULTIPLIERS)})"
_MULTIPLE = re.compile(rf"(?<=[0-9]) ({MULTIPLE})\b")
_MULTIPLIER = re.compile(rf"(.+?) ({MULTIPLE})(?: (?:of )?([A-Za-z][A-Za-z' ]*))?")
_TENS = {
    f"{ten}ty": 20 + 10 * n
    for n, ten in enumerate(["twen", "thir", "for", "fif", "six", "seven", "eigh", "nine"])
}
_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen"
)
_SMALL = {**{word: n for n, word in enumerate(_UNITS.split())}, **_TENS}
_WORD = re.compile(rf"{'|'.join(sorted(_SMALL, key=len, reverse=True))}|hundred|thousand")
_OUT_OF = re.compile(r"^([0-9]+) (?:out of|in) ([0-9]+)$")
WORDED = rf"(?i:(?:{_WORD.pattern})(?:(?: and |, |[ -])(?:{_WORD.pattern})){{0,9}})"
_WORDED = re.compile(rf"{WORDED}(?![A-Za-z-])")
THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_TIMES = re.compile(r"\\(?:times|cdot)(?![A-Za-z])|(?<=[0-9]) ?[x×] ?(?=[0-9])")
_PRODUCT = re.compile(r"[*/]|\\(?:times|cdot)")
_CURRENCY = re.compile(rf"[{CURRENCY_SIGNS}]")
_ARITHMETIC = re.compile(r"-?[0-9.(][0-9.()+*/ -]*[+*/-][0-9.()+*/ -]*[0-9.)]")
_PARTS = re.compile(rf"(\$?{DECIMAL} ?[A-Za-z¢]+)(?:,? and |, | |$)")

Unit = tuple[str, Fraction]  # (dimension, size)


class Number(NamedTuple):
    """A number parsed from text."""

    value: Fraction  # exactly as written
    place: Fraction = Fraction(0)  # the value of its last decimal place; 0 if it is not a decimal
    percent: bool = False  # whether a percent sign follows; it does not change `value`
    unit: Unit | None = None  # the unit of measure after it, or the unit of its currency sign


def names_of_unit(name: str) -> set[str]:
    """Return a unit's names, such as "cm" for "centimeter"; an empty set if it is unknown."""
    return {other for other, unit in _SIZES.items() if unit == _SIZES.get(name)}


def names_of_kind(kinds: tuple[str, ...]) -> set[str]:
    """Return the names of all units of these kinds, such as length and time."""
    return {name for name, (kind, _) in _SIZES.items() if kind in kinds}


@lru_cache(maxsize=4096)
def number(text: str) -> Number | None:
    """Parse `text` (as returned by `notation.plain`) as a single number.

    The number may be in words (`twenty-four`) or have a multiplier (`2 million`) or several units
    (`2 hours 30 minutes`). A percent sign, a unit of measure or a label (`10 paper clips`) may
    follow it. Return `None` for any other text.
    """
    text = _OUT_OF.sub(r"\1/\2", with_digits(text))
    compound = compound_number(text)
    if compound is not None:
        return compound
    multiplied = _MULTIPLIER.fullmatch(text)
    if multiplied is not None:
        return multiple(multiplied)
    core, unit = split_unit(text)
    if unit is None:
        core = without_label(core)
        unit = next((unit_of(sign) for sign in CURRENCY_SIGNS if sign in core), None)
    without = _PERCENT.sub("", core)
    value = exact(without)
    return value and Number(*value, without != core, unit)


def with_digits(text: str) -> str:
    """Convert a number in words at the beginning of `text` to digits.

    For example, return `24 apples` for `twenty-four apples`. Any other text is returned unchanged.
    """
    match = _WORDED.match(text)
    if match is None:
        return text
    total = group = 0
    for word in _WORD.findall(match[0].lower()):
        if word == "hundred":
            group *= 100
        elif word == "thousand":
            total += group * 1000
            group = 0
        elif (group % 10 == 0 and (group % 100 >= 20 or group % 100 == 0)) or word in _TENS:
            group += _SMALL[word]
        else:
            return text  # `two three` is not a number
    return f"{total + group}{text[match.end() :]}"


def compound_number(text: str) -> Number | None:
    """Parse a quantity such as `72 hours 30 minutes` and convert it to its first unit.

    Return `None` for any other text, if the units differ in kind, or if they do not get smaller
    from part to part.
    """
    parts = _PARTS.findall(text)
    if len(parts) < 2 or _PARTS.sub("", text):
        return None
    units = []
    total = Fraction(0)
    for part in parts:
        measured = number(part)
        if measured is None or measured.unit is None:
            return None
        _, size = measured.unit
        total += measured.value * size
        units.append(measured.unit)
    dimensions = {dimension for dimension, _ in units}
    sizes = [size for _, size in units]
    if len(dimensions) > 1 or sizes != sorted({*sizes}, reverse=True):
        return None
    return Number(total / sizes[0], unit=units[0])


def multiple(match: re.Match[str]) -> Number | None:
    """Parse a match of `_MULTIPLIER`, such as `2.5 million dollars` or `3 dozen`.

    Return `None` if the text before the multiplier is not a number, or is a percentage.
    """
    factor = number(match[1])
    if factor is None or factor.percent:
        return None
    size = MULTIPLIERS[match[2]]
    unit = factor.unit or unit_of(match[3] or "")
    return Number(factor.value * size, factor.place * size, unit=unit)


def arithmetic(text: str) -> Number | None:
    """Evaluate arithmetic such as `48/2 + 48` or `$2.4 million + $0.6 million` exactly.

    Return `None` for any other text, if the expression divides by zero, or if it contains two
    different currency signs. The unit of a sum such as `€30 + €18` is its currency. A `$` adds no
    unit, because it may also delimit a formula.
    """
    signs = {sign for sign in CURRENCY_SIGNS if sign in text}
    if len(signs) > 1:
        return None
    is_sum = "$" not in signs and not _PRODUCT.search(text)  # `$` may also delimit formulas
    unit = next(map(unit_of, signs), None) if is_sum else None
    text = _MULTIPLE.sub(lambda match: f"*{MULTIPLIERS[match[1]]}", text)
    text = _CURRENCY.sub("", THOUSANDS_COMMA.sub("", _TIMES.sub("*", text)).replace(r"^\circ", ""))
    if not _ARITHMETIC.fullmatch(text):
        return None
    try:
        _, value = evaluate(f"0{text}" if text.startswith("-") else text)
    except ExpressionError:
        return None
    if value is None:
        return None
    return Number(value, unit=unit)


def without_label(text: str) -> str:
    """Remove the label after a number or formula: the words that name the counted items.

    Examples are `paper clips` in `10 paper clips` and `square units` in `18 + 2\\pi square units`.
    Return the text unchanged if the words may change the value, as in `10 thousand`.
    """
    match = _LABEL.search(text)
    if match is None or _NO_LABEL.search(match[0]):
        return text
    core = text[: match.start()].strip()
    if not _FORMULA_BEFORE_LABEL.search(core):
        return text
    return core


def angle_in_radians(text: str) -> str | None:
    """Convert an angle in degrees to a formula in radians; return `None` for any other text."""
    angle = number(text)
    if angle is None or angle.unit != unit_of("degree"):
        return None
    return rf"{angle.value}*\pi/180"


@lru_cache(maxsize=4096)
def split_unit(text: str) -> tuple[str, Unit | None]:
    r"""Split the unit of measure off the end of `text`; return (rest, unit).

    The unit may be a product of units with exponents: `cm^2`, `km/h`, `m s^{-2}`, `N \cdot m`. If
    there is no unit, or the unit may be a symbol, as in `10m`, return the whole text and `None`.
    For a rate such as `$294 / week`, return `$294` and `None`.
    """
    text = _FRACTION_OF_UNITS.sub(r" \1/\2", text.replace(" mph", " mile/hour"))
    for match in _UNIT_START.finditer(text, max(0, len(text) - MAX_UNIT)):
        name = text[match.start() :]
        unit = unit_of(name)
        if unit is None:
            continue
        core = text[: match.start()].strip()
        rate = _RATE.search(core)
        if rate is not None:
            return core[: rate.start()], None  # `$294 / week`
        is_symbol = _UNKNOWN.search(core) is not None or text[match.start() - 1] != " "
        has_two_symbols = " " in name or "*" in name or "cdot" in name
        if _SYMBOLS.fullmatch(name) and (is_symbol or has_two_symbols):
            return text, None  # `10m`, `3 a - 2 m` and `5 m g` have a symbol m
        return core, unit
    return text, None


def unit_of(text: str) -> Unit | None:
    """Parse a product of units; return (dimension, size), or `None` for any other text.

    The dimension is a string such as `length^1 time^-1`. Multiplying a value by the size converts
    it to the base unit of its dimension (see `data/units.txt`).
    """
    if text == "":
        return None
    powers: dict[str, int] = {}
    size = Fraction(1)
    position = 0
    below = False
    while position < len(text):
        factor = _FACTOR.match(text, position)
        if factor is None or factor[2] not in _SIZES:
            return None
        below = below or factor[1].strip() in ("/", "per")
        power = int(factor[3] or factor[4] or 1) * (-1 if below else 1)
        kind, factor_size = _SIZES[factor[2]]
        for part in _KINDS[kind].split():
            base, _, exponent = part.partition("^")
            powers[base] = powers.get(base, 0) + power * int(exponent or 1)
        size *= factor_size**power
        position = factor.end()
    return " ".join(f"{kind}^{power}" for kind, power in sorted(powers.items()) if power), size


def exact(text: str) -> tuple[Fraction, Fraction] | None:
    """Return (value, place) of a number, fraction or mixed number; `None` for any other text.

    `place` is the value of the last decimal place, or 0 if the number is not a decimal. Also return
    `None` if a denominator is 0, or if the fraction of a mixed number is not between 0 and 1.
    """
    with_slashes = _FRAC.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]}", text)
    match = _NUMBER.fullmatch(with_slashes.strip())
    if match is None:
        return None
    sign, minus, integer, over, under, decimal, *powers = match.groups()
    place = Fraction(0)
    if over is None:
        digits = decimal.replace(",", "").replace(" ", "")
        exponent = next(filter(None, powers), 0)
        power = Fraction(10) ** int(exponent)
        value = Fraction(digits) * power
        _, point, decimals = digits.partition(".")
        if point:
            place = power / 10 ** len(decimals)
    elif int(under) == 0 or (integer and not 0 < int(over) < int(under)):
        return None
    else:
        value = int(integer or 0) + Fraction(int(over), int(under))
    is_negative = (sign == "-") != bool(minus)
    if is_negative:
        value = -value
    return value, place


def same_number(gold: Number, answer: Number) -> bool:
    """Return whether two numbers are equal, exactly or as a rounded or truncated decimal.

    Units of the same dimension are converted. One of the numbers may lack its unit, and plain
    degrees equal degrees Celsius or Fahrenheit. If only one number has a percent sign, the sign may
    be interpreted or ignored: `36%` equals both `0.36` and `36`. A percentage never equals a number
    with a unit.
    """
    if (gold.percent and answer.unit) or (gold.unit and answer.percent):
        return False
    if gold.unit and answer.unit and not is_bare_degree(gold.unit, answer.unit):
        if gold.unit[0] != answer.unit[0]:
            return False
        gold = scaled(gold, gold.unit[1])
        answer = scaled(answer, answer.unit[1])
    if gold.percent == answer.percent:
        return same_value(gold, answer)
    hundredth = Fraction(1, 100)
    gold_share = gold
    share = answer
    if gold.percent:
        gold_share = scaled(gold, hundredth)
    else:
        share = scaled(answer, hundredth)
    return same_value(gold_share, share) or same_value(gold, answer)


def is_bare_degree(unit: Unit, other: Unit) -> bool:
    """Return whether one unit is plain degrees and the other is degrees Celsius or Fahrenheit."""
    dimensions = {unit[0], other[0]}
    return dimensions in ({"angle^1", "celsius^1"}, {"angle^1", "fahrenheit^1"})


def scaled(measured: Number, size: Fraction) -> Number:
    """Return a number multiplied by `size`, without a unit."""
    return Number(measured.value * size, measured.place * size, measured.percent)


def same_value(x: Number, y: Number) -> bool:
    """Return whether two values are equal, ignoring units and percent signs.

    An integer must match exactly. A decimal may approximate another decimal, or a fraction that has
    no finite decimal expansion (see `approximates`).
    """
    if x.value == y.value or 1 in (x.value.denominator, y.value.denominator):
        return x.value == y.value
    if x.place and y.place:
        return approximates(x.value, max(x.place, y.place) / 2, y.value)
    decimal = x
    fraction = y
    if not x.place:
        decimal = y
        fraction = x
    denominator = fraction.value.denominator
    has_end = pow(10, denominator.bit_length(), denominator) == 0  # its decimal expansion is finite
    if has_end or not decimal.place:
        return False
    return approximates(decimal.value, decimal.place, fraction.value)


def approximates(decimal: Fraction, place: Fraction, value: Fraction) -> bool:
    """Return whether `decimal` is `value`, rounded or truncated to about six digits or more.

    The difference must be less than `place` and at most `TOLERANCE` times `value`, and `place` must
    be less than ten times that tolerance.

    Args:
        decimal: the decimal.
        place: the value of its last decimal place, or half of that to allow only rounding.
        value: the value that it may approximate.
    """
    difference = abs(decimal - value)
    tolerance = TOLERANCE * abs(value)
    has_six_digits = place < 10 * tolerance
    return has_six_digits and difference < place and difference <= tolerance
