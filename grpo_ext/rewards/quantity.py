"""Numbers as people write them, read exactly: `-1,234.50`, `$5`, `1 1/2`, `6.63 \\times 10^{-34}`, `25%`, `72 hours 30 minutes`."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from grpo_ext.rewards import expression

TOLERANCE = Fraction(1, 10**6)  # of the value, for decimals
UNITS = {  # by kind: names, and how many of the kind's smallest
    "length": "mm millimeter millimetre 1, cm centimeter centimetre 10, m meter metre 1000, km kilometer kilometre 1e6, "
    "inch inches in 25.4, foot feet ft 304.8, yard yd 914.4, mile mi 1609344",
    "time": "s second sec 1, minute min 60, hour h hr 3600, day 86400, week 604800",
    "calendar": "month 1, year yr 12",
    "mass": "mg milligram 1, g gram 1e3, kg kilogram 1e6, pound lb 453592.37, ounce oz 28349.523125",
    "volume": "ml mL milliliter 1, L l liter litre 1000",
    "dollars": "cent ¢ 1, dollar $ USD 100",
    "euros": "euro € 1",
    "angle": "degree 1",
}
_SIZES = {
    spelling: (kind, Fraction(names[-1]))
    for kind, line in UNITS.items()
    for names in map(str.split, line.split(", "))
    for name in names[:-1]
    for spelling in ((name, f"{name}s") if len(name) > 1 else (name,))
}
UNIT_NAMES = "|".join(map(re.escape, sorted({*_SIZES} - {"in"}, key=len, reverse=True)))
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?![0-9])"
DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)"
_POWER = r"(?:[eE]([-+]?[0-9]{1,3})|\s*(?:\\times|\\cdot|\*|x)\s*10\s?\^\s?(?:\{([-+]?[0-9]{1,3})\}|(-?[0-9]{1,3})))"
_NUMBER = re.compile(
    rf"([-+]?)\s*[$€]?(-?)(?:(?:([0-9]+)\s+)?([0-9]+)\s?/\s?(-?[0-9]+)|({DECIMAL}){_POWER}?)",
)
_FRAC = re.compile(r"\\frac\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))\s*(?:\{\s*(-?[0-9]+)\s*\}|([0-9]))")
_PERCENT = re.compile(r"\s*(?:%|per ?cent)$")
_FACTOR = r"(?:square |sq |cubic )?[A-Za-z¢]+(?: ?\^ ?\{?[23]\}?| squared| cubed)?"
_UNIT = re.compile(rf"(?:(?<=[^A-Za-z\\ ])|(?<= ))({_FACTOR}(?: ?(?:/|per) ?{_FACTOR})?)$")
_LABEL = re.compile(r"(?<=[0-9)}])\s*(?!.*\b(?:or|not|and)\b)[A-Za-z]{3,}[A-Za-z' -]*$")
_PARTS = re.compile(rf"(\$?{DECIMAL} ?[A-Za-z¢]+)(?:,? and |, | |$)")

Unit = tuple[tuple[tuple[str, int], ...], Fraction]


class Number(NamedTuple):
    """A number that was written down.

    Args:
        value: exactly as written.
        place: the value of its last decimal place; 0 where it is no decimal.
        percent: whether a percent sign stands behind it.
        unit: kinds of unit with their powers, and the unit's size; None without one.
    """

    value: Fraction
    place: Fraction = Fraction(0)
    percent: bool = False
    unit: Unit | None = None


@lru_cache(maxsize=4096)
def number(text: str) -> Number | None:
    """The number that `text`, in plain notation, is; None if it is none."""
    parts = _PARTS.findall(text) if text[-1:].isalpha() else []
    if len(parts) > 1 and _PARTS.sub("", text) == "":
        return added([number(part) for part in parts])
    core, unit = split_unit(text)
    without = _PERCENT.sub("", core)
    found = exact(_LABEL.sub("", without) if unit is None else without)
    if found is None:
        return None
    if unit is None and (sign := re.search("[$€]", core)):
        unit = read_unit(sign.group())
    return Number(*found, without != core, unit)


def added(parts: list[Number | None]) -> Number | None:
    """`72 hours 30 minutes` in its first unit; None if the units are of different kinds."""
    first = parts[0]
    if first is None or first.unit is None:
        return None
    total = Fraction(0)
    for part in parts:
        if part is None or part.unit is None or part.unit[0] != first.unit[0]:
            return None
        total += part.value * part.unit[1] / first.unit[1]
    return first._replace(value=total)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """A text without the unit of measure at its end, and that unit."""
    if text.endswith(r"^\circ"):
        core = text.removesuffix(r"^\circ").strip()
        return (core, read_unit("degree")) if _NUMBER.fullmatch(core) else (text, None)
    match = _UNIT.search(text)
    unit = read_unit(match[1]) if match else None
    if match is None or unit is None or (len(match[1]) == 1 and text[match.start() - 1] != " "):  # `10m` may be 10 times m
        return text, None
    return text[: match.start()].strip(), unit


def read_unit(text: str) -> Unit | None:
    """The unit of measure that `text` names, such as `cm^2`, `square feet`, `km/h`; None if it names none."""
    kinds, size = [], Fraction(1)
    text = {"mph": "mile/hour", "kmh": "km/hour"}.get(text, text)
    for place, factor in enumerate(re.split(r" ?(?:/|\bper\b) ?", text)):
        power = 3 if re.search("3|cub", factor) else 2 if re.search(r"2|sq", factor) else 1
        name = re.sub(r"square |sq |cubic | squared| cubed|[ ^{}23]", "", factor)
        if name not in _SIZES and name.lower() not in _SIZES:
            return None
        kind, one = _SIZES.get(name) or _SIZES[name.lower()]
        power = -power if place else power
        kinds.append((kind, power))
        size *= one**power
    return tuple(kinds), size


def exact(text: str) -> tuple[Fraction, Fraction] | None:
    """Value and last decimal place of a number, a mixed number or plain arithmetic."""
    text = _FRAC.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]}", text).strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        return computed(text)
    sign, minus, whole, over, under, decimal, *powers = match.groups()
    if over is None:
        digits = decimal.replace(",", "").replace(" ", "")
        power = Fraction(10) ** int(next(filter(None, powers), 0))
        place = power / 10 ** len(digits.partition(".")[2]) if "." in digits else Fraction(0)
        value = Fraction(digits) * power
    elif int(under) == 0 or (whole and not 0 < int(over) < int(under)):
        return None
    else:
        value, place = int(whole or 0) + Fraction(int(over), int(under)), Fraction(0)
    return (-value if (sign == "-") != bool(minus) else value), place


def computed(text: str) -> tuple[Fraction, Fraction] | None:
    """The value of arithmetic such as `3 \\times 24`, exactly; None if it is none."""
    text = re.sub(r"\\times|\\cdot", "*", text).replace(r"\div", "/").replace(":", "/")
    try:
        return Fraction(*expression.value(expression.parse(f"0{text}" if text.startswith("-") else text))), Fraction(0)
    except (expression.ExpressionError, ZeroDivisionError):
        return None


def same_number(gold: Number, answer: Number) -> bool:
    """Whether two numbers are equal: exactly, or as a decimal stands for a value that has more digits."""
    if gold.unit and answer.unit:
        if gold.unit[0] != answer.unit[0]:
            return False
        gold, answer = (Number(n.value * n.unit[1], n.place * n.unit[1], n.percent) for n in (gold, answer) if n.unit)
    if gold.percent == answer.percent:
        return same_value(gold, answer)
    of_hundred = [Number(n.value / 100, n.place / 100) if n.percent else n for n in (gold, answer)]
    return same_value(gold, answer) or same_value(*of_hundred)


def same_value(x: Number, y: Number) -> bool:
    """The same of the values alone."""
    if x.value == y.value:
        return True
    if 1 in (x.value.denominator, y.value.denominator):
        return False
    if x.place and y.place:
        return stands_for(x.value, max(x.place, y.place) / 2, y.value)
    decimal, other = (x, y) if x.place else (y, x)
    rest = other.value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return bool(decimal.place) and rest > 1 and stands_for(decimal.value, decimal.place, other.value)


def stands_for(decimal: Fraction, place: Fraction, value: Fraction) -> bool:
    """Whether a decimal is a value that was rounded or cut off, and to at least six digits."""
    return abs(decimal - value) < place and abs(decimal - value) <= TOLERANCE * abs(value)
