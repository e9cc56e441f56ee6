"""Answers are split into parts at the right places, splitting always ends, and limits count what a
computation would cost.
"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.rewards.dates import date_of
from grpo_ext.rewards.engine import NeedsEngine, Unreadable, without_engine
from grpo_ext.rewards.equality import equal
from grpo_ext.rewards.extraction import find_answer
from grpo_ext.rewards.formula_limits import MAX_POWER, is_within_limits, power_cost
from grpo_ext.rewards.notation import plain
from grpo_ext.rewards.regions import Interval, Region, region
from grpo_ext.rewards.structure import chain, collection, is_name


@pytest.mark.parametrize(
    ("text", "kind", "parts", "names"),
    [
        ("5", "single", ("5",), ()),
        ("1,234", "single", ("1,234",), ()),
        ("1, 234", "list", ("1", "234"), ()),
        ("1,234 and 5", "list", ("1,234", "5"), ()),
        ("(1,234)", "()", ("1", "234"), ()),
        (r"\{1, 2\}", "set", ("1", "2"), ()),
        (r"f(1,2) + 3", "single", ("f(1,2) + 3",), ()),
        ("(1,2), (3,4)", "list", ("(1,2)", "(3,4)"), ()),
        ("x = 1 or x = 2", "list", ("1", "2"), ("x",)),
        ("x = 1, 2", "list", ("1", "2"), ("x",)),
        ("y = 2, x = 1", "ordered", ("1", "2"), ("x", "y")),
        (r"x = \pm 3", "list", ("3", "- 3"), ("x",)),
        ("0;3", "ordered", ("0", "3"), ()),
        ("3:4:5", "ordered", ("3", "4", "5"), ()),
        (r"\emptyset", "set", (), ()),
    ],
)
def test_parts(text, kind, parts, names):
    assert collection(text) == (kind, parts, names)


def test_a_descending_chain_is_turned_round():
    assert chain("3 > x >= 1") == chain(r"1 \le x < 3")
    assert chain("x = 2 + 3 = 5").sides == ("x", "2 + 3", "5")


@pytest.mark.parametrize("text", ["x", "x_1", r"\theta", "f(2)", "f'(x)", "AB", "Area", "(x, y)"])
def test_names(text):
    assert is_name(text)


@pytest.mark.parametrize("text", ["2x", "x^2", "x + y", r"\sqrt{x}", "|x|", r"\pi", "e", "5", ""])
def test_operations_are_no_names(text):
    assert not is_name(text)


def test_regions():
    inside = Region("x", (Interval("1", "2", False, True),))
    assert (
        region(r"1 < x \le 2") == region(r"x \in (1,2]") == region(r"\{x | 1 < x \le 2\}") == inside
    )
    assert region("(1,2] \\cup (3,4]") == Region(
        None, (Interval("1", "2", False, True), Interval("3", "4", False, True))
    )
    assert region("a < b") is None and region("x^2 < 3") is None and region("5") is None


FRAGMENTS = r"""1 2 72 , ; : = < > ( ) [ ] \{ \} { } | ' " _ ^ + - / * . $ % ! x y e i \pm \mp
    \in \cup \le \ne \pi \circ or and not \frac{1}{2} \sqrt{2} \begin{pmatrix} \end{pmatrix}
    \boxed{ million hours cm ^2 answer #### maybe But A B f(x) \setminus is May 2024 a.m.
    \text{or} \overline{3} lambda: 1,234"""
PIECES = st.sampled_from(FRAGMENTS.split())
TEXTS = st.lists(st.one_of(PIECES, st.just(" ")), max_size=40).map("".join)


@given(TEXTS, TEXTS)
def test_comparing_ends_and_raises_nothing_else(gold, answer):
    with suppress(Unreadable, NeedsEngine), without_engine():
        assert equal(plain(gold), plain(answer)) in (True, False)


@given(TEXTS)
def test_every_text_equals_itself(text):
    assert equal(plain(text), plain(text))


@given(TEXTS, st.integers(1, 200))
def test_an_answer_is_found_or_not(text, times):
    for completion in (text * times, f"<answer>{text * times}</answer>", rf"\boxed{{{text}}}"):
        answer = find_answer(completion)
        assert answer is None or 0 < len(answer) <= 300


@given(st.lists(st.integers(2, 99), min_size=2, max_size=4))
def test_the_cost_of_a_tower_bounds_the_digits_of_its_value(numbers):
    """Of ((a^b)^c)^d, computed as an integer where that is small enough."""
    base, *exponents = numbers
    formula = str(base)
    digits = 1.0
    for exponent in exponents:
        formula = f"({formula})^{{{exponent}}}"
        digits *= exponent
    assert power_cost(formula) >= min(digits, MAX_POWER)
    if digits < 2_000:
        value = base
        for exponent in exponents:
            value **= exponent
        assert len(str(value)) <= power_cost(formula)


@pytest.mark.parametrize(
    "formula",
    [
        "x^5 - x^4 + x^3 - x^2 + x - 1",
        "+".join(f"x^{{{n}}}" for n in range(30)),
        "x^{2018} + x^{2017}",
        "2^{100} + 3^{100}",
        r"\frac{x^{10}}{y^{20}}",
        "(x+1)^{20}",
    ],
)
def test_exponents_of_summands_and_factors_are_not_multiplied(formula):
    assert is_within_limits(formula)


@pytest.mark.parametrize(
    "formula", ["(x+1)^{9999}", "((x+1)^{50})^{50}", "9 ^ {99999}", "72_8", "7'2", "3 5"]
)
def test_what_would_take_long_or_is_read_wrongly_is_not_tame(formula):
    assert not is_within_limits(formula)


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("36%, 36", "36, 0.36", True),  # 36 must pair with 36, although 36% equals it, too
        ("36%, 36", "0.36, 36", True),
        ("36%, 36%", "36, 0.36", True),
        ("36%, 36", "0.36, 0.36", False),
        ("1, 2, 2", "2, 1, 1", False),
        ("1, 2", "1, 2, 2", False),
    ],
)
def test_parts_are_paired_in_whichever_way_all_are_equal(gold, answer, expected):
    assert equal(gold, answer) == expected


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("1969-07-20", (1969, 7, 20)),
        ("1969-99-99", None),
        ("1969-02-29", None),
        ("February 29", (None, 2, 29)),
        ("February 30", None),
        ("July 1969", (1969, 7, None)),
        ("31 June 1969", None),
    ],
)
def test_only_dates_that_exist_are_dates(text, date):
    assert date_of(text) == date


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1969-02-30", "1937"),
        ("1937", "1969-02-30"),
        ("1942", "1969-07-20"),
        ("2020-13-01", "2006"),
    ],
)
def test_a_date_is_not_a_difference_of_numbers(gold, answer):
    assert not equal(gold, answer)
