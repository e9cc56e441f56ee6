"""The evaluator against Python's parser with exact fractions, and what it must refuse."""

import ast
import operator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards.expression import MAX_DEPTH, MAX_LENGTH, ExpressionError
from grpo_ext.rewards.expression import evaluate as read
from tests.support.runaway import no_runaway

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
REFUSED = (ast.UnaryOp, ast.Pow, ast.FloorDiv, ast.Call, ast.Tuple)


def evaluate(text: str) -> Fraction:
    found = read(text)[1]
    if found is None:
        raise ZeroDivisionError
    return found


def oracle(text: str) -> Fraction:
    """Python's grammar over fractions, less what we refuse.

    ValueError or SyntaxError for the rest.
    """

    def walk(node: ast.AST) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return Fraction(ast.get_source_segment(source, node))
        raise ValueError(ast.dump(node))

    source = " ".join(text.split())  # line breaks end a Python expression, not ours
    tree = ast.parse(source, mode="eval")
    if any(
        isinstance(node, REFUSED) for node in ast.walk(tree)
    ):  # also where a division by zero comes first
        raise ValueError(text)
    return walk(tree.body)


number = st.one_of(
    st.integers(0, 10**6).map(str),
    st.builds(lambda a, b: f"{a}.{b}", st.integers(0, 999), st.integers(0, 999)),
    st.integers(0, 99).map(lambda n: f".{n}"),
    st.integers(1, 99).map(lambda n: f"{n}."),
)
space = st.sampled_from(["", "", " ", "  ", "\t", "\n"])


def combine(inner):
    binary = st.builds(
        lambda a, s, op, t, b: f"{a}{s}{op}{t}{b}",
        inner,
        space,
        st.sampled_from("+-*/"),
        space,
        inner,
    )
    return binary | st.builds(lambda s, a, t: f"({s}{a}{t})", space, inner, space)


expressions = st.recursive(number, combine, max_leaves=20)


@settings(max_examples=1000, deadline=None)
@given(expressions)
def test_value_equals_oracle(text):
    try:
        expected = oracle(text)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            evaluate(text)
    else:
        assert evaluate(text) == expected


@settings(max_examples=1500, deadline=None)
@given(st.text("0123456789+-*/(). \n", max_size=24))
def test_accepts_exactly_what_the_oracle_accepts(text):
    """Over the allowed alphabet we agree with Python on every string, but for what we refuse by
    rule.
    """
    try:
        expected = oracle(text)
    except (SyntaxError, ValueError):
        expected = None
    except ZeroDivisionError:
        expected = "zero division"
    try:
        found = evaluate(text)
    except ExpressionError:
        found = None
    except ZeroDivisionError:
        found = "zero division"
    if has_leading_zero(text):  # Python takes 00, 00.5 and refuses 007; we refuse them all
        assert found is None
    else:
        assert found == expected


def has_leading_zero(text: str) -> bool:
    previous = ""
    for position, character in enumerate(text[:-1]):
        if (
            character == "0"
            and text[position + 1].isdigit()
            and not (previous.isdigit() or previous == ".")
        ):
            return True
        if not (
            previous == "." and character.isdigit()
        ):  # digits after a point stay "after a point"
            previous = character
    return False


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_a_value_or_a_plain_error(text):
    try:
        assert isinstance(evaluate(text), Fraction)
    except ZeroDivisionError:
        pass
    except ExpressionError as error:
        assert str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 +",
        "+ 1",
        "-1",
        "1 - -1",
        "2 ** 3",
        "2 // 3",
        "1 2",
        "(1",
        "1)",
        "()",
        "1(2)",
        "(1)(2)",
        "1_000",
        "１",
        "٣",
        "²",
        "1e5",
        "0x10",
        "1j",
        "1,2",
        "a",
        "1 + a",
        "__import__('os')",
        "1\0",
        "\ud800",
        "1=1",
        ".",
        "1..2",
        "1.2.3",
        "007",
        "00",
        "1 % 2",
        "~1",
        "1 if 1 else 2",
        "[1]",
        "1 × 2",
        "1\u00a0+ 1",
        "lambda: 1",
        "1;2",
        "#1",
    ],
)
def test_refuses(text):
    with pytest.raises(ExpressionError):
        evaluate(text)


def test_limits_are_quick_and_exact():
    deepest = "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH
    assert evaluate(deepest) == 1
    with no_runaway():
        for text in (
            "(" + deepest + ")",
            "9" * (MAX_LENGTH + 1),
            "9" * 10**7,
            "(" * 10**5,
            "9**9**9",
        ):
            with pytest.raises(ExpressionError):
                read(text)
    assert evaluate("9" * MAX_LENGTH) == 10**MAX_LENGTH - 1
    long_sum = "+".join(["1"] * (MAX_LENGTH // 2))
    assert evaluate(long_sum) == MAX_LENGTH // 2


def test_numbers_stay_as_small_as_the_text():
    text = "/".join(["0.123456789"] * (MAX_LENGTH // 12))
    numerator, denominator = evaluate(text).as_integer_ratio()
    assert max(numerator, denominator) < 10 ** (2 * MAX_LENGTH)


def test_literals_are_what_is_written():
    assert read("3 * (4.5 - 3) / .5 + 3.0")[0] == [3, Fraction(9, 2), 3, Fraction(1, 2), 3]
