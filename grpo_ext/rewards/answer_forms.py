"""Check whether an answer has the form that a question asks for, such as reduced or expanded."""

import math
import re

from grpo_ext.rewards.structure import split

_PLUS = re.compile(r"[-+]")
# The factors after a coefficient: `x^2`, `\pi`, `\sqrt{2}`
_FACTORS = r"(?: ?(?:[A-Za-z]|\\pi)(?:\^ ?(?:[0-9]|\{ ?[0-9]+ ?\}))?| ?\\sqrt ?\{[0-9]+\})*"
# `15/40`, `4x^2/6` and `\frac{4\sqrt{2}}{6}`, but not the exponent in `x^2/6`
_FRACTION = re.compile(
    rf"(?<![0-9.])(?<![A-Za-z)}}]\^)([0-9]{{1,9}}){_FACTORS} ?/ ?([0-9]{{1,9}})(?![0-9.])"
    rf"|\\frac ?\{{ ?([0-9]{{1,9}}){_FACTORS} ?\}} ?\{{ ?([0-9]{{1,9}}){_FACTORS} ?\}}"
)
_ROOT = re.compile(r"\\sqrt ?\{ ?([0-9]{1,9})((?: ?(?:\\cdot|\\times|\*) ?[0-9]+)*) ?\}")
_SHORT_ROOT = re.compile(r"\\sqrt ?([0-9])")  # \sqrt2
_PRODUCTS = re.compile(r"\\frac ?\{([^{}+-]*)\} ?\{([^{}+-]*)\}")  # numerator, denominator
_FUNCTIONS = r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|ln|log|exp|lim|det|text"
# a function, also one such as `f(x)`, or a word
_NO_PRODUCT = re.compile(
    rf"\\(?:{_FUNCTIONS})(?![A-Za-z])|(?<![A-Za-z\\])(?:{_FUNCTIONS})(?![A-Za-z])"
    r"|(?<![A-Za-z\\])[A-Za-z] ?\(|(?<![A-Za-z\\])[A-Za-z]{4}"
)
_SYMBOLS = re.compile(r"\\[A-Za-z]+|[A-Za-z]")  # commands and letters
_SIGNS = {r"\cdot", r"\times", r"\sqrt"}
_SUM_IN_BRACKETS = re.compile(r"\(([^()]*[^()^{*/ -] ?[-+][^()]*)\)(?: ?\^ ?\{? ?([0-9]{1,2}))?")
_COEFFICIENT = re.compile(r"[0-9]{1,9}")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_TIMES = re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[*x()\s]")
_EXPONENT = re.compile(r"(?<=[0-9]) ?\^ ?(?:([0-9])|\{ ?([0-9]{1,9}) ?\})")
_I = r"(?<![A-Za-z\\])i(?![A-Za-z])"
_SUM_WITH_I = rf"\([^()]*{_I}[^()]*\)"
_GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_SIGN_OF_PRODUCT = r" ?(?:\\cdot|\\times|\*)? ?"
# A power or a product that must still be computed, or a polar form such as
# `2(\cos 60^\circ + i \sin 60^\circ)`
_UNFINISHED_WITH_I = re.compile(
    rf"(?:{_I}|{_SUM_WITH_I}) ?\^|\^ ?(?:i|\{{[^{{}}]*{_I})"
    rf"|[)i]{_SIGN_OF_PRODUCT}{_SUM_WITH_I}|{_SUM_WITH_I}{_SIGN_OF_PRODUCT}(?:\(|{_I})"
    rf"|{_I}{_SIGN_OF_PRODUCT}{_I}|\\(?:cos|sin)(?![A-Za-z])"
)
_DENOMINATOR = re.compile(
    rf"\\frac ?(?:{_GROUP}|[0-9]) ?({_GROUP}|i)|/ ?(i(?![A-Za-z])|\([^()]*\))"
)
_IMAGINARY = re.compile(_I)
_SEVERAL = re.compile(r"[,;]|\b(?:and|or)\b|\\(?:pm|mp)(?![A-Za-z])")
_SCIENTIFIC = re.compile(r"-?[1-9](?:\.[0-9]+)? ?(?:\\times|\\cdot|\*|x) ?10 ?\^.*")


def is_sum(side: str) -> bool:
    """Return whether a formula has more than one nonzero term."""
    terms = split(side.lstrip("-+ "), _PLUS)
    return sum(term not in ("0", "0i") for term in terms) > 1


def is_reduced(formula: str) -> bool:
    r"""Return whether a formula contains no reducible fraction or square root.

    Fractions such as 15/40 and 4x/6 are reducible, and so is the root of a number with a square
    factor, such as 18, or of a product that is not multiplied out, such as 2 * 3. A formula that
    contains the root of the same number twice is not reduced either, nor is one with a `\frac` in
    which the numerator and the denominator share a letter or a symbol such as `\pi`, and neither is
    a sum or contains a function.
    """
    formula = _SHORT_ROOT.sub(r"\\sqrt{\1}", formula)
    fractions = [[int(digits) for digits in pair if digits] for pair in _FRACTION.findall(formula)]
    roots = _ROOT.findall(formula)
    return not (
        len({*roots}) < len(roots)
        or any(share_a_factor(*parts) for parts in _PRODUCTS.findall(formula))
        or any(math.gcd(*fraction) > 1 for fraction in fractions)
        or any(factors for _, factors in roots)
        or any(has_square_factor(int(number)) for number, _ in roots)
    )


def share_a_factor(numerator: str, denominator: str) -> bool:
    r"""Return whether two products share a letter or a symbol such as `\pi`.

    Return `False` if either contains a function, such as `\sin`, or a word of four or more letters.
    """
    if _NO_PRODUCT.search(numerator) or _NO_PRODUCT.search(denominator):
        return False
    above = {*_SYMBOLS.findall(numerator)} - _SIGNS
    return not above.isdisjoint(_SYMBOLS.findall(denominator))


def is_expanded(formula: str) -> bool:
    """Return whether a formula contains no sum in parentheses."""
    return _SUM_IN_BRACKETS.search(formula) is None


def is_factored(formula: str) -> bool:
    """Return whether a formula is not itself a sum but has a sum as a factor, as in `2(x + 3)`.

    Return `False` if a number above 1 or a letter divides all terms of such a factor: `(2x + 6)` is
    not factored.
    """
    sums = [terms for terms, _ in _SUM_IN_BRACKETS.findall(formula)]
    return bool(sums) and not is_sum(formula) and not any(map(has_common_divisor, sums))


def factor_count(formula: str) -> int:
    """Return the number of factors that are sums, with multiplicity: 3 for `2(x + 3)(x - 1)^2`."""
    return sum(int(power or 1) for _, power in _SUM_IN_BRACKETS.findall(formula))


def has_common_divisor(formula: str) -> bool:
    """Return whether an integer above 1 or a letter divides all terms of a sum."""
    terms = split(formula.lstrip("-+ "), _PLUS)
    leading = [_COEFFICIENT.match(term) for term in terms]
    coefficients = [1 if digits is None else int(digits[0]) for digits in leading]
    letters = [{*_LETTER.findall(term)} for term in terms]
    return math.gcd(*coefficients) > 1 or bool(set.intersection(*letters))


def is_scientific(formula: str) -> bool:
    return _SCIENTIFIC.fullmatch(formula) is not None


def is_product_of_primes(formula: str) -> bool:
    r"""Return whether a formula is a product of at least two primes, such as `2^3 \cdot 5`."""
    exponents = [int(single or braced) for single, braced in _EXPONENT.findall(formula)]
    factors = [factor for factor in _TIMES.split(_EXPONENT.sub("", formula)) if factor]
    count = len(factors) + sum(exponent - 1 for exponent in exponents)
    return 0 not in exponents and count > 1 and all(map(is_prime, factors))


def is_prime(text: str) -> bool:
    """Return whether a string is a prime number of at most nine digits."""
    if not _COEFFICIENT.fullmatch(text) or int(text) < 2:
        return False
    return all(int(text) % divisor for divisor in range(2, math.isqrt(int(text)) + 1))


def is_cartesian(formula: str) -> bool:
    """Return whether a formula is a single complex number in the form `a + bi` or `bi`.

    Such a formula contains `i`, has at most two terms, contains no sine or cosine, and has no `i`
    in a denominator, in a power or in a product such as `(1 + i)(2 - i)`.
    """
    if _IMAGINARY.search(formula) is None or _SEVERAL.search(formula):
        return False
    denominators = [match[1] or match[2] for match in _DENOMINATOR.finditer(formula)]
    is_divided = any(map(_IMAGINARY.search, denominators))
    is_unfinished = is_divided or _UNFINISHED_WITH_I.search(formula) is not None
    return not is_unfinished and len(split(formula.lstrip("-+ "), _PLUS)) <= 2


def is_decimal(formula: str) -> bool:
    return "/" not in formula and r"\frac" not in formula


def has_square_factor(number: int) -> bool:
    return any(number % factor**2 == 0 for factor in range(2, math.isqrt(number) + 1))


FORMS = {
    re.compile(r"\b(?i:simplif|simplest|reduce|lowest terms)"): is_reduced,
    re.compile(r"\b(?i:expand|multiply out|slope[- ]intercept)"): is_expanded,
    re.compile(r"\b(?i:factor(?:ize|ise)?\b(?!s))"): is_factored,
    re.compile(r"\b(?i:(?:to|as|in) (?:a )?decimal)\b"): is_decimal,
    re.compile(r"\b(?i:scientific notation)"): is_scientific,
    re.compile(
        r"\b(?i:prime (?:factori|decomposition)|product of (?:[a-z]+ ){0,3}primes?\b)"
    ): is_product_of_primes,
    re.compile(r"\S"): is_cartesian,  # for any question, if the gold answer has this form
}
