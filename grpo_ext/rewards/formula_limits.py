"""Checks the text of a formula before sympy evaluates it.

sympy computes `9^{9^{9}}`, `(10^{9})!` and `\\int` as soon as it reads them, in C where nothing can interrupt it. So a formula
may have only the commands of usual answers, and its numbers, powers and exponentials must be small. These limits do not
guarantee that sympy is quick, so a worker with a deadline is needed as well.
"""

import re
from itertools import accumulate

from grpo_ext.common.files import data_lines

MAX_LENGTH = 300  # characters
MAX_DIGITS = 40  # of one number
MAX_DEPTH = 8  # brackets open at once
MAX_COMMANDS = 30
MAX_POWER = 10_000  # digits of all powers of numbers together
MAX_EXPANDED = 1_000  # terms times exponent of a bracket with letters
MAX_TOWER = 4  # the largest number in an exponent that has an exponent
MAX_FACTORIAL = 200

_KNOWN = {
    command for line in data_lines("grpo_ext.rewards", "commands.txt") for command in line.split()
}
_REFUSED = re.compile(
    r"""
    ['"$%] | [0-9]\s*_ | (?<![_0-9])[0-9]+\s+[0-9.]              # marks that latex2sympy skips in numbers
    | \\begin\{(?![pb]?matrix\}) | \\begin.*\|                   # determinants and other environments
    | \\frac\s?\{\s?(?:d|\\partial)\s?(?:\^\{?[0-9]\}?)?\s?[a-z]?\s?\}\s?\{\s?(?:d|\\partial)\s?[a-z]  # derivatives
    | /\s?0+(?:\.0+)?(?![.0-9]) | \}\s?\{\s?0+\s?\}              # divisions by zero
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
# The shapes of an exponent; without a match it is all the text that follows.
_ONE = r"(?>\{(?:[^{}]|\{[^{}]*\})*\}|\([^()]*\)|-?[0-9.]+|[A-Za-z]|\\[A-Za-z]++(?!\s*[\[{(0-9]))"
_EXPONENT = re.compile(rf"{_POWER.pattern}({_ONE}(?!\s*(?:\^|\*\*))|.+)")


def is_within_limits(formula: str) -> bool:
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
    """Whether towers of exponents are small, and what powers would cost to compute."""
    if r"\begin" in formula:  # the entries of a matrix grow with every multiplication
        return not _POWER.search(formula)
    for exponent in _EXPONENT.findall(formula):
        if _POWER.search(exponent) and any(n > MAX_TOWER for n in numbers_in(exponent)):
            return False
        if any(map(_POWER.search, _EXPONENT.findall(exponent))):  # e^{e^{e^e}}
            return False
    return power_cost(formula) <= MAX_POWER


def numbers_in(text: str) -> list[int]:
    return [int(digits) for digits in _INTEGER.findall(text)]


def power_cost(formula: str) -> int:
    """Return how many digits or terms the powers in a formula have at most; more than `MAX_POWER` if a bracket is too large.

    Summands and factors add to the cost. Only a power of a power multiplies it: `x^5 - x^4 + x^3` costs 12, `((2^9)^9)^9` 729.
    """
    total = position = 0
    base_cost = 1  # of the atom or bracket just read
    base = ""
    while position < len(formula):
        power = _EXPONENT.match(formula, position)
        content = bracket_content(formula, position)
        if power is not None:
            if power[0].startswith("\\"):  # \exp and its like: a power of e
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
    """Return a bound for the value of an exponent without powers: the product of its numbers."""
    size = 1
    for number in numbers_in(exponent):
        size *= max(number, 1)
    return size


def bracket_content(formula: str, start: int) -> str | None:
    """Return what stands in the bracket that opens at `start`, or None if none does or it does not close."""
    if formula[start] not in "({[":
        return None
    depth = 0
    for position in range(start, len(formula)):
        depth += (formula[position] in "({[") - (formula[position] in ")}]")
        if depth == 0:
            return formula[start + 1 : position]
    return None
