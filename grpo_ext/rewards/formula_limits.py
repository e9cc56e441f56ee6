"""Check the text of a formula before sympy evaluates it.

Evaluating a formula such as `9^{9^{9}}` or `(10^{9})!` can take unlimited time and memory, partly
in C code that cannot be interrupted. A formula may therefore use only the LaTeX commands that are
common in answers (`commands.txt`), its numbers, powers and exponentials must be small, and it must
contain no determinant, derivative or division by zero. These limits do not guarantee that sympy is
fast, so the evaluation must also run in a worker with a deadline.
"""

import re
from itertools import chain

from grpo_ext.common.files import data_lines

MAX_LENGTH = 300  # characters
MAX_DIGITS = 40  # digits of one number
MAX_DEPTH = 8  # nested brackets
MAX_COMMANDS = 30
MAX_POWER = 10_000  # total digits of all powers of numbers
MAX_EXPANDED = 1_000  # terms of a bracketed expression with letters, times its exponent
MAX_TOWER = 4  # the largest number in an exponent that itself contains a power
MAX_FACTORIAL = 200

_COMMANDS = set(chain.from_iterable(map(str.split, data_lines("grpo_ext.rewards", "commands.txt"))))
_REFUSED = re.compile(
    r"""
    # Marks that latex2sympy skips in numbers.
    ['"$%] | [0-9]\s*_ | (?<![_0-9])[0-9]+\s+[0-9.]
    # Determinants and other environments.
    | \\begin\{(?![pb]?matrix\}) | \\begin.*\|
    # Derivatives.
    | \\frac\s?\{\s?(?:d|\\partial)\s?(?:\^\{?[0-9]\}?)?\s?[a-z]?\s?\}
      \s?\{\s?(?:d|\\partial)\s?[a-z]
    # Divisions by zero.
    | /\s?0+(?:\.0+)?(?![.0-9]) | \}\s?\{\s?0+\s?\}
    """,
    re.VERBOSE,
)
_FACTORIAL = re.compile(r"!|\\(?:binom|Gamma|zeta)(?![A-Za-z])")
_AFTER_VALUE = re.compile(r"[)}\]!]\s*!")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_INTEGER = re.compile(r"[0-9]+")
_POWER = re.compile(r"(?:\^|\*\*|\\(?:exp|sinh|cosh)(?![A-Za-z]))\s*")
_LETTER = re.compile(r"[A-Za-z]")
_ATOM = re.compile(r"[0-9]+|\\[A-Za-z]+|.", re.DOTALL)
# Shapes of an exponent; if none matches, all the text that follows is taken as the exponent.
_SIMPLE_EXPONENT = (
    r"(?>\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?[0-9.]+|[A-Za-z]|\\[A-Za-z]++(?!\s*[\[{(0-9]))"
)
_EXPONENT = re.compile(rf"{_POWER.pattern}({_SIMPLE_EXPONENT}(?!\s*(?:\^|\*\*))|.+)")


def is_within_limits(formula: str) -> bool:
    """Return whether a formula, in LaTeX or plain text, is within all limits of this module."""
    if len(formula) > MAX_LENGTH or not formula.isprintable() or _REFUSED.search(formula):
        return False
    commands = _COMMAND.findall(formula)
    if len(commands) > MAX_COMMANDS or not _COMMANDS.issuperset(commands):
        return False
    if any(len(digits) > MAX_DIGITS for digits in _INTEGER.findall(formula)):
        return False
    return (
        has_shallow_brackets(formula)
        and has_small_factorials(formula)
        and has_small_powers(formula)
    )


def has_shallow_brackets(formula: str) -> bool:
    """Return whether braces match and brackets are nested at most `MAX_DEPTH` deep."""
    open_brackets = 0
    open_braces = 0
    for character in formula:
        if character in "{([":
            open_brackets += 1
        elif character in "})]":
            open_brackets -= 1
        if character == "{":
            open_braces += 1
        elif character == "}":
            open_braces -= 1
        if open_brackets > MAX_DEPTH or open_braces < 0:
            return False
    return open_braces == 0


def has_small_factorials(formula: str) -> bool:
    """Return whether all factorials, binomials, gammas and zetas in a formula are cheap to compute.

    A formula with any of these must contain no power, no factorial of a bracketed expression or of
    another factorial, and no number above `MAX_FACTORIAL`.
    """
    if not _FACTORIAL.search(formula):
        return True
    if _AFTER_VALUE.search(formula) or _POWER.search(formula):
        return False
    return max(numbers_in(formula), default=0) <= MAX_FACTORIAL


def has_small_powers(formula: str) -> bool:
    """Return whether the powers in a formula are cheap to compute.

    Its `power_cost` must be at most `MAX_POWER`. If an exponent itself contains a power, it must
    contain no number above `MAX_TOWER`, and the exponent of that power must contain no further
    power, so `e^{e^{e^e}}` is rejected. A formula with a matrix must not contain any power.
    """
    if r"\begin" in formula:  # the entries of a matrix grow with every multiplication
        return not _POWER.search(formula)
    for exponent in _EXPONENT.findall(formula):
        if _POWER.search(exponent) and max(numbers_in(exponent), default=0) > MAX_TOWER:
            return False
        if any(map(_POWER.search, _EXPONENT.findall(exponent))):  # e^{e^{e^e}}
            return False
    return power_cost(formula) <= MAX_POWER


def numbers_in(text: str) -> list[int]:
    return [int(digits) for digits in _INTEGER.findall(text)]


def power_cost(formula: str) -> int:
    r"""Return an estimate of how many digits or terms the powers in a formula have.

    A number costs its number of digits, and any other symbol or command costs 1. A power costs the
    cost of its base times the `exponent_size` of its exponent. All these costs are added up:
    `x^5 - x^4` costs 10, `(x+1)^5` costs 15, and `((2^9)^9)^9` costs 729. `\exp`, `\sinh` and
    `\cosh` cost one less than a power of `e`, which has its base written out. If a power of a
    bracketed expression with letters costs more than `MAX_EXPANDED`, return a cost above
    `MAX_POWER`.
    """
    total = 0
    position = 0
    base_cost = 1  # the cost of the last atom or bracketed expression
    base = ""
    while position < len(formula):
        power = _EXPONENT.match(formula, position)
        content = bracket_content(formula, position)
        if power is not None:
            if power[0].startswith("\\"):  # \exp, \sinh and \cosh are powers of e
                base_cost = 1
                base = ""
            cost = base_cost * exponent_size(power[1])
            if _LETTER.search(_COMMAND.sub("", base)) and cost > MAX_EXPANDED:
                return MAX_POWER + 1
            total += cost - base_cost
            base_cost = cost
            position = power.end()
        elif formula[position].isspace():
            position += 1
        elif content is not None:
            base_cost = max(power_cost(content), 1)
            base = content
            total += base_cost
            position += len(content) + 2
        else:
            atom = _ATOM.match(formula, position)
            assert atom is not None
            base_cost = len(atom[0]) if atom[0].isdecimal() else 1
            base = ""
            total += base_cost
            position = atom.end()
    return total


def exponent_size(exponent: str) -> int:
    """Estimate the size of an exponent: return the product of its integers, counting 0 as 1."""
    size = 1
    for number in numbers_in(exponent):
        size *= max(number, 1)
    return size


def bracket_content(formula: str, start: int) -> str | None:
    """Return the content of the bracket that opens at offset `start`.

    Return `None` if no bracket opens there, or if it is never closed.
    """
    if formula[start] not in "({[":
        return None
    depth = 0
    for position in range(start, len(formula)):
        if formula[position] in "({[":
            depth += 1
        elif formula[position] in ")}]":
            depth -= 1
        if depth == 0:
            return formula[start + 1 : position]
    return None
