"""Decide whether two answers are equal; docs/rewards.md lists the rules.

The answers are in plain notation, as returned by `notation.plain`. Two answers that differ only in
typography are equal, even beyond the limits of the engine. Otherwise, dates, choices, and words
such as "yes" are compared as such. All other answers are split into their parts (`structure`), and
the parts are compared as numbers (`quantity`), words (`texts`) or formulas (`engine`).
"""

import re
from collections.abc import Sequence
from functools import cache

from grpo_ext.rewards.dates import date_of, looks_like_date, same_date
from grpo_ext.rewards.engine import same_equation, same_formula, same_set
from grpo_ext.rewards.notation import typography
from grpo_ext.rewards.quantity import (
    angle_in_radians,
    arithmetic,
    number,
    same_number,
    split_unit,
    without_label,
)
from grpo_ext.rewards.regions import merged, region, same_region
from grpo_ext.rewards.structure import (
    MAX_PARTS,
    RESTATEMENT,
    Collection,
    brackets,
    chain,
    collection,
    is_name,
    is_tuple,
    split,
)
from grpo_ext.rewards.texts import (
    as_text,
    chosen_letter,
    is_text,
    is_verdict,
    option,
    same_special,
    same_texts,
    says_none,
)

_SYMBOL = re.compile(
    r"(?<![\\A-Za-z])[A-Za-df-hj-z]|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi)(?![a-z])"
)
_MODULUS = re.compile(r" ?(?:\\pmod ?\{? ?|\( ?\\?b?mod )([0-9]+) ?[})]* *$")
_CONSTANT = re.compile(r"\+ ?[CcKk]$")
_FUNCTION = re.compile(r"([A-Za-z]) ?\( ?([a-z]) ?\) ?=")
_INTEGRAL = re.compile(r"\\int(?![A-Za-z_]).*d ?[a-z]", re.DOTALL)
_ANGLE = re.compile(r"\\(?:pi|circ)(?![a-z])")
_WITH_THOUSANDS = re.compile(r"(?<![0-9.,(])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")


def equal(gold: str, answer: str) -> bool:
    """Return whether two answers in plain notation are equal.

    Raises:
        Unreadable: if the gold answer cannot be compared as a number, words or a formula.
        NeedsEngine: inside `without_engine`, if the comparison needs the engine.
    """
    if typography(gold) == typography(answer):
        return True
    expected_date = date_of(gold)
    if expected_date is not None:
        return same_date(expected_date, date_of(answer))
    if looks_like_date(gold) or looks_like_date(answer):
        return False  # it is not a difference of numbers
    gold_letter = chosen_letter(gold)
    letter = chosen_letter(answer)
    if gold_letter is not None and letter is not None:
        return gold_letter == letter
    answer_option = option(answer)
    if answer_option is not None:
        return equal(gold, answer_option[1])
    gold_option = option(gold)
    if gold_option is not None:
        return equal(gold_option[1], answer)
    if is_verdict(gold):
        return as_text(gold) == as_text(answer)
    if r"\emptyset" in (gold, answer) and (says_none(gold) or says_none(answer)):
        return True
    restatements = split(answer, RESTATEMENT)
    if len(restatements) > 1 and all(equal(gold, statement) for statement in restatements):
        return True
    if _MODULUS.search(answer):
        return same_residue(gold, answer)
    answer = with_variable_of(gold, answer)
    expected = parts_of(gold)
    actual = collection(answer) if expected.kind == "list" else parts_of(answer)
    expected_region = merged(expected)
    actual_region = merged(actual)
    if expected_region is not None and actual_region is not None:
        return same_region(expected_region, actual_region, equal)
    return same_collection(expected, actual)


def same_residue(gold: str, answer: str) -> bool:
    r"""Return whether an answer such as `x \equiv 2 \pmod 7` equals the gold answer.

    The gold answer may be a residue or a congruence. If it is a congruence, it must have the same
    modulus as the answer. Return `False` if the answer names no modulus.
    """
    expected = _MODULUS.search(gold)
    actual = _MODULUS.search(answer)
    if actual is None or (expected is not None and expected[1] != actual[1]):
        return False
    residues = [chain(_MODULUS.sub("", text).strip()).sides[-1] for text in (gold, answer)]
    return equal(residues[0], residues[1])


def with_variable_of(gold: str, answer: str) -> str:
    """Rename the answer's integration constant and function variable to match the gold answer.

    For example, return `f(x) = x + 2` for `f(y) = y + 2` if the gold answer begins with `f(x) =`,
    and `x^2 + C` for `x^2 + K` if the gold answer ends in `+ C`. A constant is only ever renamed to
    `C`. Nothing is renamed to a name that the answer already uses, and the variable of a function
    with another name is left unchanged.
    """
    has_constants = gold.endswith("C") and _CONSTANT.search(gold) and _CONSTANT.search(answer)
    if has_constants and "C" not in answer:
        answer = f"{answer[:-1]}C"
    expected = _FUNCTION.match(gold)
    actual = _FUNCTION.match(answer)
    if expected is None or actual is None or expected[1] != actual[1]:
        return answer
    variable = expected[2]
    if re.search(rf"(?<![A-Za-z\\]){variable}(?![A-Za-z])", answer):
        return answer  # the answer already uses this name
    return re.sub(rf"(?<![A-Za-z\\]){actual[2]}(?![A-Za-z])", variable, answer)


def parts_of(text: str) -> Collection:
    """Split an answer into its parts; words, or a number such as `1,234`, are a single part."""
    if number(text) is not None or is_text(text):
        return Collection("single", (text,))
    return collection(text)


def same_collection(expected: Collection, actual: Collection) -> bool:
    """Return whether two collections are equal; order matters only in tuples and ordered lists."""
    if not same_names(expected.names, actual.names):
        return False
    if {expected.kind, actual.kind} == {"single"}:
        return same_leaf(with_name(expected), with_name(actual))
    has_one_name = len(expected.names) == 1 and not actual.names
    are_lists = expected.kind == actual.kind == "list"
    if has_one_name and are_lists and any("=" in part for part in actual.parts):
        # `y = \pm x` as the gold answer, and `x \pm y = 0` as the answer
        parts = [f"{expected.names[0]} = {part}" for part in expected.parts]
        return matches(parts, actual.parts)
    if expected.kind == "list" and actual.kind == "single" and len({*expected.parts}) == 1:
        return equal(expected.parts[0], with_name(actual))  # "each is 40" for 40 and 40
    if is_column(actual) and is_tuple(expected):
        return same_formula(as_column(expected), actual.parts[0])
    if len(expected.parts) != len(actual.parts) or len(expected.parts) > MAX_PARTS:
        return same_whole(expected, actual)
    has_tuple = is_tuple(expected) or is_tuple(actual)
    kinds = (expected.kind, actual.kind)
    if is_tuple(expected) and is_tuple(actual) and expected.kind != actual.kind:
        return False
    if has_tuple and "set" in kinds:
        return False
    if has_tuple or "ordered" in kinds:
        return all(map(equal, expected.parts, actual.parts))
    return matches(expected.parts, actual.parts)


def same_names(expected: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Return whether two answers name the same unknowns in the same order, or one names none.

    `y` and `f(x)` count as the same unknown.
    """
    if not expected or not actual:
        return True
    return [typography(name) for name in expected] == [typography(name) for name in actual] or {
        *expected,
        *actual,
    } == {"y", "f(x)"}


def same_name(expected: str | None, actual: str | None) -> bool:
    """Return whether two answers name the same unknown, or one of them names none."""
    if expected is None or actual is None:
        return True
    return same_names((expected,), (actual,))


def matches(expected: Sequence[str], actual: Sequence[str]) -> bool:
    """Return whether the parts of two lists can be paired one to one, so that each pair is equal.

    The order does not matter. Equality is not transitive (`36%` equals both `36` and `0.36`), so a
    part may have to give up its first partner (Kuhn's algorithm for bipartite matching).

    Args:
        expected: the parts of the gold answer.
        actual: the parts of the answer.
    """
    if len(expected) != len(actual):
        return False
    equal_parts = cache(lambda part, other: equal(expected[part], actual[other]))
    part_of: dict[int, int] = {}  # index in `actual` -> index of its partner in `expected`

    def finds_partner(part: int, tried: set[int]) -> bool:
        for other in range(len(actual)):
            if other in tried or not equal_parts(part, other):
                continue
            tried.add(other)
            if other not in part_of or finds_partner(part_of[other], tried):
                part_of[other] = part
                return True
        return False

    return all(finds_partner(part, set()) for part in range(len(expected)))


def is_column(parts: Collection) -> bool:
    return parts.kind == "single" and r"\begin" in parts.parts[0]


def as_column(parts: Collection) -> str:
    return r"\begin{pmatrix}" + r"\\".join(parts.parts) + r"\end{pmatrix}"


def with_name(single: Collection) -> str:
    return " = ".join((*single.names, *single.parts))


def same_whole(expected: Collection, actual: Collection) -> bool:
    r"""Return whether two collections are equal as sets; `False` if neither contains a `\setminus`.

    For example, `(0,9) \cup (9,36)` equals `(0,36) \setminus \{9\}`.
    """
    texts = [" , ".join(side.parts) for side in (expected, actual)]
    return any(r"\setminus" in text for text in texts) and same_set(*texts)


def same_leaf(gold: str, answer: str) -> bool:
    """Return whether two single-part answers are equal, as numbers, words, chains or formulas."""
    if typography(gold) == typography(answer):
        return True
    for comparison in (same_special, same_numbers, same_texts, same_chains):
        verdict = comparison(gold, answer)
        if verdict is not None:
            return verdict
    return same_expression(gold, answer)


def same_numbers(gold: str, answer: str) -> bool | None:
    """Return whether two numbers, or calculations such as `48/2`, are equal.

    Return `None` if either answer is something else.
    """
    expected = number(gold) or arithmetic(gold)
    if expected is None:
        return None
    actual = number(answer) or arithmetic(answer)
    if actual is None:
        return None
    return same_number(expected, actual)


def same_chains(gold: str, answer: str) -> bool | None:
    """Return whether two answers are equal if at least one has a relation sign, as in `x = 3`.

    The other answer may be a single value: `x = 3` equals `3`. Return `None` if neither answer has
    a relation sign.
    """
    expected = chain(gold)
    actual = chain(answer)
    if not expected.operators and not actual.operators:
        return None
    if {*expected.operators, *actual.operators} != {"="}:
        return same_relation(gold, answer)
    expected_name, expected_sides = value_sides(expected.sides)
    actual_name, actual_sides = value_sides(actual.sides)
    if expected_name is None and len(expected_sides) > 1 and _SYMBOL.search(gold):
        return same_equations(expected.sides, actual.sides)
    value = expected_sides[-1]
    if not has_symbol(value):
        actual_sides = computed_sides(actual_sides)
    if same_name(expected_name, actual_name) and all(equal(value, side) for side in actual_sides):
        return True
    return same_equations(expected.sides, actual.sides)


def value_sides(sides: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    r"""Split the sides of a chain into a name (`None` if there is none) and values.

    The first side is dropped if it is an indefinite integral, as in `\int 2x \, dx = x^2 + C`.
    """
    if len(sides) > 1 and is_name(sides[0]):
        return sides[0], sides[1:]
    if len(sides) > 1 and _INTEGRAL.fullmatch(sides[0]):
        return None, sides[1:]
    return None, sides


def computed_sides(sides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sides of a chain that contain no symbols.

    For example, return `12/4` and `3` for `V/R = 12/4 = 3`. All sides are returned if fewer than
    two would remain, or if the last side contains a symbol.
    """
    computed = tuple(side for side in sides if not has_symbol(side))
    if len(computed) > 1 and computed[-1] == sides[-1]:
        return computed
    return sides


def has_symbol(side: str) -> bool:
    """Return whether one side of an equation or inequality contains a symbol.

    A symbol is a Latin letter other than `e` and `i` that follows neither a letter nor a backslash,
    or one of the Greek letters in `_SYMBOL`. The letters of a unit do not count.
    """
    core, _ = split_unit(side)
    return _SYMBOL.search(core) is not None


def same_equations(expected: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    """Return whether two equations, each given by its sides, are equivalent.

    Return `False` unless both have exactly two sides and contain a symbol.
    """
    equations = []
    for sides in (expected, actual):
        if len(sides) != 2 or not _SYMBOL.search("=".join(sides)):
            return False
        equations.append((sides[0], sides[1]))
    return same_equation(*equations)


def same_relation(gold: str, answer: str) -> bool:
    """Compare two relations side by side, as regions, or as sets; return whether they are equal.

    Relations are never equal if only one of them contains `=`. An answer without a relation sign
    can only be equal if it is a region or is enclosed in brackets.
    """
    expected = chain(gold)
    actual = chain(answer)
    if expected.operators == actual.operators and all(map(equal, expected.sides, actual.sides)):
        return True
    if ("=" in expected.operators) != ("=" in actual.operators):
        return False
    expected_region = region(gold)
    actual_region = region(answer)
    if expected_region is not None and actual_region is not None:
        return same_region(expected_region, actual_region, equal)
    if not actual.operators and brackets(answer) is None:
        return False
    return same_set(gold, answer)


def same_expression(gold: str, answer: str) -> bool:
    """Return whether two formulas without relations are equal.

    If both have a unit, the units must be equal as well. An angle in degrees may equal a formula in
    radians. A gold answer that is a number never equals a formula with symbols.
    """
    if not _SYMBOL.search(gold) and _SYMBOL.search(without_label(answer)) and number(gold):
        return False
    in_radians = angle_in_radians(gold), angle_in_radians(answer)
    if in_radians[0] and _ANGLE.search(answer):
        return same_formula(in_radians[0], answer)
    if in_radians[1] and _ANGLE.search(gold):
        return same_formula(gold, in_radians[1])
    gold, gold_unit = split_unit(gold)
    answer, unit = split_unit(answer)
    if gold_unit is not None and unit is not None and gold_unit != unit:
        return False
    return same_formula(*map(without_thousands, map(without_label, (gold, answer))))


def without_thousands(formula: str) -> str:
    """Remove the commas between thousands, as in `12,500x`, which the engine would parse as a list.

    A number right after `(` keeps its commas, because it may be two arguments, as in `f(1,200)`.
    """
    return _WITH_THOUSANDS.sub(lambda numeral: numeral[0].replace(",", ""), formula)
