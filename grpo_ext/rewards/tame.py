"""Checks the text of a formula before sympy evaluates it.

sympy computes `9^{9^{9}}`, `(10^{9})!` and `\\int` as soon as it reads them, in C where nothing can interrupt it. So a formula
may have only the commands of usual answers, and its numbers, powers and exponentials must be small. These limits do not
guarantee that sympy is quick, so a worker with a deadline is needed as well.
"""

import math
import re
from itertools import accumulate

from grpo_ext.common.files import data_lines

MAX_LENGTH = 300  # characters
MAX_DIGITS = 40  # of one number
MAX_DEPTH = 8  # brackets open at once
MAX_COMMANDS = 30
MAX_POWER = 10_000  # the product of all exponents
MAX_SYMBOLIC_POWER = 100  # the product of all exponents in a formula with letters
MAX_TOWER = 4  # the largest number in an exponent that has an exponent
MAX_FACTORIAL = 200

_KNOWN = {
    command for line in data_lines("grpo_ext.rewards", "commands.txt") for command in line.split()
}
_REFUSED = re.compile(  # determinants, division by zero
    r"\\begin\{(?![pb]?matrix\})|\\begin.*\||/ ?0+(?:\.0+)?(?![.0-9])|\} ?\{ ?0+ ?\}|%"
)
_FACTORIAL = re.compile(r"!|\\(?:binom|Gamma|zeta)(?![A-Za-z])")
_AFTER_VALUE = re.compile(r"[)}\]!]\s*!")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_INTEGER = re.compile(r"[0-9]+")
_POWER = re.compile(r"(?:\^|\*\*|\\(?:exp|sinh|cosh)(?![A-Za-z]))\s*")
_LETTER = re.compile(r"[A-Za-z]")
# The shapes of an exponent; without a match it is all the text that follows.
_ONE = r"(?>\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?[0-9.]+|[A-Za-z]|\\[A-Za-z]++(?!\s*[\[{(0-9]))"
_EXPONENT = re.compile(rf"{_POWER.pattern}({_ONE}(?!\s*(?:\^|\*\*))|.+)")


def is_tame(formula: str) -> bool:
    """Whether a formula, in LaTeX or plain text, is within all limits."""
    if len(formula) > MAX_LENGTH or not formula.isprintable() or _REFUSED.search(formula):
        return False
    commands = _COMMAND.findall(formula)
    if len(commands) > MAX_COMMANDS or not _KNOWN.issuperset(commands):
        return False
    if any(len(digits) > MAX_DIGITS for digits in _INTEGER.findall(formula)):
        return False
    return nests_little(formula) and has_small_factorials(formula) and has_small_powers(formula)


def nests_little(formula: str) -> bool:
    """Whether braces match and few brackets of any kind are open at once."""
    depths = accumulate((character in "{([") - (character in "})]") for character in formula)
    braces = [0, *accumulate((character == "{") - (character == "}") for character in formula)]
    return max(depths, default=0) <= MAX_DEPTH and min(braces) == braces[-1] == 0


def has_small_factorials(formula: str) -> bool:
    """Whether the arguments of factorials and binomials are small numbers, not computed ones."""
    if not _FACTORIAL.search(formula):
        return True
    small = all(int(n) <= MAX_FACTORIAL for n in _INTEGER.findall(formula))
    return small and not _AFTER_VALUE.search(formula) and not _POWER.search(formula)


def has_small_powers(formula: str) -> bool:
    """Whether exponents, towers of exponents, and powers of powers are small."""
    if r"\begin" in formula:  # the entries of a matrix grow with every multiplication
        return not _POWER.search(formula)
    limit = MAX_SYMBOLIC_POWER if _LETTER.search(_COMMAND.sub("", formula)) else MAX_POWER
    product = 1
    for exponent in _EXPONENT.findall(formula):
        numbers = [int(n) for n in _INTEGER.findall(exponent)]
        if _POWER.search(exponent) and any(n > MAX_TOWER for n in numbers):
            return False
        if any(map(_POWER.search, _EXPONENT.findall(exponent))):  # e^{e^{e^e}}
            return False
        product *= math.prod(max(n, 1) for n in numbers)
    return product <= limit
