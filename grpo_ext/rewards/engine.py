"""Compare formulas parsed by latex2sympy: by their values at a few points, or with math-verify.

Evaluating a formula with sympy can take unlimited time and memory. The engine therefore accepts
only formulas within limits (see `is_within_limits`), and trainers run it in worker processes. In
the trainer's process, comparisons run inside `without_engine`, where those that need the engine
raise `NeedsEngine`.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.formula_limits import is_within_limits
from grpo_ext.rewards.quantity import approximates, number

DIGITS = 40  # decimal digits of the values that are compared
AGREED = 1e-25  # maximum relative difference between equal values
POINTS = (0.618, 1.732, -0.347)  # values of the first symbol; those of the others are larger

_allowed: ContextVar[bool] = ContextVar("engine_allowed", default=True)
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])|\\sqrt\{-")
_DEGREES = re.compile(r"([0-9]*\.?[0-9]+)\s*\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})")


class NeedsEngine(Exception):
    """Raised if a comparison inside `without_engine` needs the engine."""


class Unreadable(ValueError):
    """Raised if the gold answer is beyond the limits of `is_within_limits` or cannot be parsed."""


@contextmanager
def without_engine() -> Iterator[None]:
    """Context manager inside which all comparisons that need the engine raise `NeedsEngine`."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


@lru_cache(maxsize=1)
def math_verify() -> Any:
    """Import and return math-verify, with its warnings about disabled timeouts silenced.

    The timeouts are disabled because they use alarm signals, which would cancel the reward's
    deadline.
    """
    with paused():
        import math_verify
        import sympy.physics.units  # noqa: F401 - so that no row with a unit waits for this import

        for part in ("parser", "grader", "utils"):
            logging.getLogger(f"math_verify.{part}").setLevel(logging.ERROR)
        math_verify.parse(r"\boxed{\sqrt{2}}", parsing_timeout=None)  # the first call builds tables
    return math_verify


def same_formula(gold: str, answer: str) -> bool:
    """Return whether two formulas, matrices or sets are equal.

    A decimal also equals a value that rounds to it (see `approximates`). Return `False` if `answer`
    is beyond the limits or cannot be parsed.

    Raises:
        Unreadable: if `gold` is beyond the limits or cannot be parsed.
        NeedsEngine: inside `without_engine`, if both formulas are within the limits.
    """
    formulas = parsed(gold, answer)
    if formulas is None:
        return False
    a, b = formulas
    pairs = pairs_of_values(a, b)
    if pairs:
        return (
            same_values(a, b, pairs)
            or is_rounded(gold, pairs[0][1])
            or is_rounded(answer, pairs[0][0])
        )
    return verified(a, b)


def same_set(gold: str, answer: str) -> bool:
    """Return whether two inequalities, or two sets of numbers, are equivalent.

    Return `False` if `answer` is beyond the limits or cannot be parsed.

    Raises:
        Unreadable: if `gold` is beyond the limits or cannot be parsed.
        NeedsEngine: inside `without_engine`, if both are within the limits.
    """
    formulas = parsed(gold, answer)
    return formulas is not None and verified(*formulas)


def same_equation(gold: tuple[str, str], answer: tuple[str, str]) -> bool:
    """Return whether two equations, each given by its two sides, are multiples of each other.

    Each equation stands for the difference of its sides. At all `POINTS` where both differences
    have a value, the differences must be nonzero and have the same ratio. There must be at least
    two such points. Return `False` if `answer` is beyond the limits or cannot be parsed.

    Raises:
        Unreadable: if `gold` is beyond the limits or cannot be parsed.
        NeedsEngine: inside `without_engine`, if both equations are within the limits.
    """
    formulas = parsed(*(f"({left}) - ({right})" for left, right in (gold, answer)))
    if formulas is None:
        return False
    pairs = pairs_of_values(*formulas)
    ratios = []
    for x, y in pairs:
        if x == 0 or y == 0:
            return False
        ratios.append(x / y)
    if len(ratios) < 2:
        return False
    tolerance = AGREED * abs(ratios[0])
    return all(abs(ratio - ratios[0]) <= tolerance for ratio in ratios)


def parsed(gold: str, answer: str) -> tuple[Any, Any] | None:
    """Parse both formulas; return `None` if `answer` is beyond the limits or cannot be parsed.

    Raises:
        Unreadable: if `gold` is beyond the limits or cannot be parsed.
        NeedsEngine: inside `without_engine`, if both formulas are within the limits.
    """
    if not is_within_limits(gold):
        raise Unreadable(gold)
    if not is_within_limits(answer):
        return None
    if not _allowed.get():
        raise NeedsEngine
    a = parse(gold)
    b = parse(answer)
    if a is None:
        raise Unreadable(gold)
    if b is None:
        return None
    return a, b


@lru_cache(maxsize=4096)
def parse(formula: str) -> Any:
    r"""Parse a formula into a sympy object with latex2sympy, or return `None` if that fails.

    Decimals become exact fractions, and numbers in degrees, such as `30^\circ`, become radians.
    math-verify's own `parse` is not used, because it removes units and converts capitals to lower
    case.
    """
    formula = _DEGREES.sub(r"{(\1\\pi/180)}", formula)
    formula = _DECIMAL.sub(lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", formula)
    convert, normalization, conversion = latex_reader()
    try:
        return convert(
            formula,
            is_real=not _IMAGINARY.search(formula),
            normalization_config=normalization,
            conversion_config=conversion,
        )
    except Exception:  # latex2sympy raises a plain Exception for formulas that it cannot read
        return None


@lru_cache(maxsize=1)
def latex_reader() -> tuple[Any, Any, Any]:
    """Return latex2sympy and its two configurations, which preserve units and capital letters."""
    math_verify()
    from latex2sympy2_extended.latex2sympy2 import (
        ConversionConfig,
        NormalizationConfig,
        latex2sympy,
    )

    normalization = NormalizationConfig(malformed_operators=True, boxed="none")
    return latex2sympy, normalization, ConversionConfig(lowercase_symbols=False)


def verified(a: Any, b: Any) -> bool:
    """Return whether math-verify considers two sets, tuples or matrices equal.

    Inequalities are converted to sets first (see `solutions`). A matrix equals only a matrix.
    """
    from sympy import MatrixBase, MatrixExpr

    if isinstance(a, MatrixExpr):
        a = a.doit()
    if isinstance(b, MatrixExpr):
        b = b.doit()
    if isinstance(a, MatrixBase) != isinstance(b, MatrixBase):
        return False
    return bool(math_verify().verify([solutions(a, b)], [solutions(b, a)], timeout_seconds=None))


def pairs_of_values(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Return pairs of the values of two expressions at those `POINTS` where both have a value."""
    pairs = zip(values(a, b), values(b, a), strict=True)
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def values(found: Any, other: Any) -> list[Any]:
    """Return the value of `found` at each of `POINTS`, or `None` where it has no finite value.

    All values are `None` if `found` or `other` is not a scalar expression. The symbol `i` is the
    imaginary unit. The value of any other symbol depends on its place among the sorted names of
    both expressions, so that a shared symbol has the same value in both.
    """
    from sympy import Expr, I

    if not isinstance(found, Expr) or not isinstance(other, Expr):
        return [None] * len(POINTS)
    names = sorted({symbol.name for symbol in found.free_symbols | other.free_symbols} - {"i"})
    numbers = []
    for point in POINTS:
        at = {
            s: I if s.name == "i" else point + 0.271 * names.index(s.name)
            for s in found.free_symbols
        }
        value = found.evalf(DIGITS, subs=at)
        numbers.append(value if value.is_number and value.is_finite else None)
    return numbers


def same_values(a: Any, b: Any, pairs: list[tuple[Any, Any]]) -> bool:
    """Return whether two expressions have the same values in all `pairs`.

    Two rational numbers are compared exactly instead. The values of other expressions may differ by
    at most `AGREED`, relative to the larger value.

    Args:
        a: a sympy expression.
        b: the sympy expression to compare with it.
        pairs: the values of both, from `pairs_of_values`; not empty.
    """
    if not (a.free_symbols or b.free_symbols):
        a = a.doit()
        b = b.doit()
        if a.is_Rational and b.is_Rational:
            return a == b
    for x, y in pairs:
        tolerance = AGREED * max(abs(x), abs(y))
        if abs(x - y) > tolerance:
            return False
    return True


def is_rounded(text: str, value: Any) -> bool:
    """Return whether `text` is a decimal that `value` rounds to (see `approximates`).

    Return `False` if `value`, a sympy number, is not real.
    """
    found = number(text)
    if found is None or not found.place or not value.is_real:
        return False
    return approximates(found.value, found.place, Fraction(str(value)))


def solutions(found: Any, other: Any) -> Any:
    """Convert inequalities such as `1 < x < 2` to the set of numbers that satisfy them.

    A set of inequalities becomes the union of their solutions. Return `found` unchanged if it
    contains no inequality, contains an equation, does not have exactly one symbol, or cannot be
    solved by sympy, or if `other`, with which it is compared, has other symbols.
    """
    from sympy import Eq, FiniteSet, Union
    from sympy.core.relational import Relational

    if isinstance(found, FiniteSet) and all(
        part.has(Relational) and not part.has(Eq) for part in found.args
    ):
        return Union(*(solutions(part, other) for part in found.args))
    symbols = found.free_symbols
    if (
        not found.has(Relational)
        or found.has(Eq)
        or len(symbols) != 1
        or other.free_symbols - symbols
    ):
        return found
    with suppress(NotImplementedError):  # raised for periodic functions
        return found.as_set()
    return found
