"""Brings the many spellings of an answer into one notation: `−５`, `\\text{ cm}`, `\\left(`, `1{,}000`, `$x$`."""

import re
from functools import lru_cache

from grpo_ext.common.files import data_yaml

_TABLE = data_yaml("grpo_ext.rewards", "notation.yaml")
_FULL_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SIGNS = str.maketrans(
    _FULL_WIDTH | {sign: new for new, signs in _TABLE["signs"].items() for sign in signs}
)


def as_fraction(repeating: re.Match[str]) -> str:
    """Return a decimal with a sign over its repeating digits as a fraction: 15/90 for 0.1666..."""
    whole, once, period = repeating.groups()
    over, under = (
        int(whole + once + period) - int(whole + once),
        (10 ** len(period) - 1) * 10 ** len(once),
    )
    return rf"\frac{{{over}}}{{{under}}}"


_WORDING = [
    (re.compile(pattern), as_fraction if new is None else new) for pattern, new in _TABLE["wording"]
]


def with_ascii_signs(text: str) -> str:
    """Replace full-width characters, typographic minus signs and mathematical symbols by ASCII or LaTeX."""
    return text if text.isascii() else text.translate(_SIGNS)


def with_repeating_decimals_as_fractions(text: str) -> str:
    """Replace repeating decimals by fractions, as `plain` does."""
    for pattern, new in _WORDING:
        if new is as_fraction:
            text = pattern.sub(new, text)
    return text


@lru_cache(maxsize=4096)
def plain(piece: str) -> str:
    """Return an answer without the notation that does not change its meaning."""
    piece = with_ascii_signs(piece)
    if piece.strip("0123456789.,+- ") not in ("", "$"):
        for pattern, new in _WORDING:
            piece = pattern.sub(new, piece)
    return piece.strip(" *`\"';:,").removesuffix(".").rstrip(" *")


_BRACED = re.compile(r"([\^_]) ?\{ ?([0-9A-Za-z]|\\[A-Za-z]+) ?\}")
_BLANK = re.compile(r"(?<![0-9A-Za-z.]) | (?![0-9A-Za-z.])|(?<=[0-9]) (?=[A-Za-z\\])")
_PLUS_INFINITY = re.compile(r"\+ ?\\infty")


def typography(piece: str) -> str:
    """Return an answer without what only sets the type: blanks, braces around one sign, `+` before infinity."""
    piece = _PLUS_INFINITY.sub(r"\\infty", piece)
    return _BRACED.sub(r"\1\2", _BLANK.sub("", piece))
