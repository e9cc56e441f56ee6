"""Which formulas sympy can be trusted to finish with: a check of the text, before anything evaluates it.

sympy computes `9^{9^{9}}`, `(10^{9})!` and `\\int` as soon as it meets them, in C where nothing can interrupt it. The
limits are far above what an answer needs: what is beyond them is no answer that has been worked out. They cannot promise that
sympy is quick, so a deadline is still needed.
"""

import re

MAX_LENGTH = 300  # characters
MAX_DIGITS = 30  # of one number
MAX_DEPTH = 8  # brackets open at once
MAX_COMMANDS = 30
MAX_POWER = 10_000  # of a number: the product of all exponents
MAX_SYMBOLIC_POWER = 100  # where there are letters: the product of all exponents
MAX_TOWER = 4  # the largest number in an exponent that has an exponent
MAX_FACTORIAL = 200

_UNFINISHED = re.compile(r"\\(?:i{1,3}nt|oint|sum|prod|coprod|lim|limsup|liminf|bigcup|bigcap)(?![A-Za-z])")
_FACTORIAL = re.compile(r"!|\\(?:[dt]?binom|Gamma|zeta)(?![A-Za-z])")
_AFTER_VALUE = re.compile(r"[)}\]!]\s*!")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_INTEGER = re.compile(r"[0-9]+")
_POWER = re.compile(r"(?:\^|\*\*)\s*")
_LETTER = re.compile(r"[A-Za-z]")
_PAIRS = {"{": "}", "(": ")", "[": "]"}


def is_tame(formula: str) -> bool:
    """Whether a formula, in LaTeX or plain, is small in every respect."""
    if len(formula) > MAX_LENGTH or not formula.isprintable() or _UNFINISHED.search(formula):
        return False
    if len(_COMMAND.findall(formula)) > MAX_COMMANDS or any(len(n) > MAX_DIGITS for n in _INTEGER.findall(formula)):
        return False
    return nests_little(formula) and has_small_factorials(formula) and has_small_powers(formula)


def nests_little(formula: str) -> bool:
    """Whether braces match and few brackets of any kind are open at once."""
    braces = depth = 0
    for character in formula:
        if character in "{([":
            depth += 1
            braces += character == "{"
        elif character in "})]":
            depth -= 1
            braces -= character == "}"
        if depth > MAX_DEPTH or braces < 0:
            return False
    return braces == 0


def has_small_factorials(formula: str) -> bool:
    """Whether factorials and binomials are of small numbers, and of nothing computed."""
    if not _FACTORIAL.search(formula):
        return True
    small = all(int(n) <= MAX_FACTORIAL for n in _INTEGER.findall(formula))
    return small and not _AFTER_VALUE.search(formula) and not _POWER.search(formula)


def has_small_powers(formula: str) -> bool:
    """Whether exponents are small, towers low, and powers of powers, too."""
    if r"\begin" in formula:  # of a matrix, whose entries grow with every multiplication
        return not _POWER.search(formula)
    limit = MAX_SYMBOLIC_POWER if _LETTER.search(_COMMAND.sub("", formula)) else MAX_POWER
    product = 1
    for sign in _POWER.finditer(formula):
        exponent = exponent_at(formula, sign.end())
        numbers = [int(n) for n in _INTEGER.findall(exponent)]
        if _POWER.search(exponent) and any(n > MAX_TOWER for n in numbers):
            return False
        for n in numbers:
            product *= max(n, 1)
    return product <= limit


def exponent_at(formula: str, start: int) -> str:
    """The exponent that begins at `start`, with a tower on top of it."""
    end = start
    while True:
        end = operand_end(formula, end)
        tower = _POWER.match(formula, end)
        if tower is None:
            return formula[start:end]
        end = tower.end()


def operand_end(formula: str, start: int) -> int:
    """Where the bracket, number, command or character ends that begins at `start`."""
    if start >= len(formula):
        return start
    if formula[start] in _PAIRS:
        opening, closing, depth = formula[start], _PAIRS[formula[start]], 0
        for position in range(start, len(formula)):
            depth += (formula[position] == opening) - (formula[position] == closing)
            if depth == 0:
                return position + 1
        return len(formula)
    match = _INTEGER.match(formula, start) or _COMMAND.match(formula, start)
    return match.end() if match else start + 1
