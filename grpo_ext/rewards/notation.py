"""Brings the many spellings of an answer into one notation: `−５`, `\\text{ cm}`, `\\left(`, `1{,}000`, `$x$`."""

import re
from functools import lru_cache

_FULL_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_SIGNS = str.maketrans(
    _FULL_WIDTH
    | dict.fromkeys("−–‐‑", "-")
    | dict.fromkeys("\u00a0\u2009\u202f\u3000", " ")
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "∅": r"\emptyset "}
    | {"°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∈": r"\in ", "±": r"\pm ", "²": "^2", "³": "^3"}
    | {"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3"}
)


def as_fraction(repeating: re.Match[str]) -> str:
    """Return a decimal with a sign over its repeating digits as a fraction: 15/90 for 0.1666..."""
    whole, once, period = repeating.groups()
    over, under = int(whole + once + period) - int(whole + once), (10 ** len(period) - 1) * 10 ** len(once)
    return rf"\frac{{{over}}}{{{under}}}"


_WORDING = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"√\s*([0-9]+|[a-z])", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln)(?![A-Za-z])", r"\\\1"),
        (r"\\(?:left|right|displaystyle|limits|!)(?![A-Za-z])", ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~|\s", " "),  # `\\ ` ends a row
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\{,\}", ","),
        (r"(?<![0-9,])([0-9]{1,20})\.([0-9]{0,20})\\(?:overline|bar|dot)\{([0-9]{1,20})\}", as_fraction),
        (r"^ *\\begin\{([pb])matrix\}((?:(?!\\begin|(?:\\\\ *)?\\end)[^&])+)(?:\\\\)? *\\end\{\1matrix\} *$", r"(\2)"),
        (r"\\\\(?:\[[0-9.]+(?:pt|em|ex|mm)\])?(?!.*\\end)", ","),  # between the rows of a column, which is a tuple
        (r"\\([%$])", r"\1"),
        (r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![A-Za-z]))", r"^\\circ"),
        (r"^(-?[0-9.]+) ?\^\\circ ?$", r"\1 degree"),
        (r"\\(le|ge)(?:q|qslant)(?![A-Za-z])", r"\\\1"),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset"),
        (r"\\\(|\\\)|\\\[(?![0-9.]+(?:pt|em|ex|mm))|\\\]|\$\$", " "),
        (r"\$([^$]*)\$", r" \1 "),
        (r"(?<=\S) ?\\approx.*", ""),
        (r"\b(?:negative|minus) (?=[0-9])", "-"),
        (r"  +", " "),
        (r"^([^=]+?) ?= ?([A-Za-z])$", r"\2 = \1"),
    )
]


def with_ascii_signs(text: str) -> str:
    """Replace full-width characters, typographic minus signs and mathematical symbols by ASCII or LaTeX."""
    return text if text.isascii() else text.translate(_SIGNS)


@lru_cache(maxsize=4096)
def plain(piece: str) -> str:
    """Return an answer without the notation that does not change its meaning."""
    piece = with_ascii_signs(piece)
    if piece.strip("0123456789.,+- ") not in ("", "$"):
        for pattern, new in _WORDING:
            piece = pattern.sub(new, piece)
    return piece.strip(" *`\"';:,").removesuffix(".").rstrip(" *")
