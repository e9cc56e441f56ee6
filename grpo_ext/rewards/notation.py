"""Normalize the notation of answers, such as `−５`, `\\text{ cm}`, `1{,}000` and `$x$`."""

import re
from functools import lru_cache

from grpo_ext.common.files import data_yaml

_TABLE = data_yaml("grpo_ext.rewards", "notation.yaml")
_FULL_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SIGNS = str.maketrans(
    _FULL_WIDTH | {sign: new for new, signs in _TABLE["signs"].items() for sign in signs}
)


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_POWER = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_OPENING = r"[\s,$({]*(?:\\(?:text[a-z]*\s*\{|quad|[(,;])\s*)*"
_CLOSING = r"(?:[\s$}]|\\[,;)])*"
_NUMBERS = r"(?:(?:real|rational|complex|natural)(?: numbers?| values of)?|integers?|values of)"
_SET = r"\\(?:math)?bb\s*(?:\{\s*[RZNQC]\s*\}|[RZNQC])|\(-\\infty, ?\\infty\)|[ℝℤℕℚℂ]"
_KNOWN = r"[a-zA-Z](?:_[0-9])?(?:\s?,\s?[a-z])*"
# `for all real x`, `\text{ for all }x\in\mathbb{R}`, `where C is a constant`; but not the
# restriction `for all x > 0`
_QUANTIFIER = re.compile(
    rf"(?<=[0-9A-Za-z)}}$])(?:{_OPENING}(?:\\forall|\bfor "
    rf"(?:all|every|each|any)\b){_CLOSING}{_OPENING}"
    rf"(?:{_NUMBERS}{_CLOSING}{_OPENING})?{_KNOWN}"
    rf"|{_OPENING}\bwhere\b{_CLOSING}{_OPENING}{_KNOWN}"
    rf"(?={_CLOSING}(?:\\in(?![a-z])|is an? )))"
    rf"(?:{_CLOSING}(?:\\in(?![a-z])\s*(?:{_SET})|is an? (?:(?:arbitrary|real|any) "
    rf")*(?:constant|integer|number)))?"
    rf"{_CLOSING}\.?$"
)


def in_ascii(power: re.Match[str]) -> str:
    """Convert an exponent in superscript characters to LaTeX, such as `^2` or `^{-7}`."""
    digits = power[0].translate(_SUPERSCRIPTS)
    if len(digits) == 1:
        return f"^{digits}"
    return f"^{{{digits}}}"


def without_quantifier(text: str) -> str:
    """Remove a phrase such as "for all real x" or "where C is a constant" that ends an equation.

    If the phrase contains the equation's closing `$`, the `$` is kept. Return any other text
    unchanged.
    """
    match = _QUANTIFIER.search(text, max(0, len(text) - 150))
    if match is None or "=" not in text[: match.start()]:
        return text
    head = text[: match.start()]
    return f"{head}$" if head.count("$") % 2 else head


def as_fraction(repeating: re.Match[str]) -> str:
    r"""Convert a repeating decimal to a LaTeX fraction: `0.1\overline{6}` becomes `\frac{15}{90}`.

    The groups of the match are the integer part, the decimals before the overline, and the decimals
    under the overline.
    """
    integer, once, period = repeating.groups()
    digits = integer + once
    numerator = int(digits + period) - int(digits)
    denominator = (10 ** len(period) - 1) * 10 ** len(once)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


_WORDING = [
    (re.compile(pattern), as_fraction if new is None else new) for pattern, new in _TABLE["wording"]
]


def with_ascii_signs(text: str) -> str:
    """Replace full-width, superscript and other typographic characters with ASCII or LaTeX."""
    if text.isascii():
        return text
    return _POWER.sub(in_ascii, text).translate(_SIGNS)


def with_repeating_decimals_as_fractions(text: str) -> str:
    """Replace repeating decimals with fractions, as `plain` does, but change nothing else."""
    for pattern, new in _WORDING:
        if new is as_fraction:
            text = pattern.sub(new, text)
    return text


def with_short_units(text: str) -> str:
    """Normalize units of temperature (`25 celsius`) and times of day (`4:15 pm`) as `plain` does.

    Nothing else is changed.
    """
    for pattern, new in _WORDING:
        if new in (" celsius", " fahrenheit", " kelvin", " am", " pm"):
            text = pattern.sub(new, text)
    return text


@lru_cache(maxsize=4096)
def plain(answer: str) -> str:
    """Return an answer in plain notation, without markup that does not change its meaning.

    Spaces, quotes, backticks, asterisks, commas, colons and semicolons are removed from both ends,
    and then a final period with any spaces and asterisks before it.
    """
    answer = with_ascii_signs(answer)
    if answer.strip("0123456789.,+- ") not in ("", "$"):
        for pattern, new in _WORDING:
            answer = pattern.sub(new, answer)
        answer = without_quantifier(answer)
    return answer.strip(" *`\"';:,").removesuffix(".").rstrip(" *")


_BRACED = re.compile(r"([\^_]) ?\{ ?([0-9A-Za-z]|\\[A-Za-z]+) ?\}")
_BLANK = re.compile(r"(?<![0-9A-Za-z.]) | (?![0-9A-Za-z.])|(?<=[0-9]) (?=[A-Za-z\\])")
_PLUS_INFINITY = re.compile(r"\+ ?\\infty")


def typography(answer: str) -> str:
    """Remove unnecessary spaces, the braces in `x^{2}` and `a_{n}`, and the `+` before infinity."""
    answer = _PLUS_INFINITY.sub(r"\\infty", answer)
    return _BRACED.sub(r"\1\2", _BLANK.sub("", answer))
