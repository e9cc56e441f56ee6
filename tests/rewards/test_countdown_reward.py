"""The countdown reward: what earns 1, what does not, and why."""

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.countdown_reward import fault


def score(answer: str, nums, target, **options) -> float:
    return build("countdown", **options)(completions=[answer], nums=[nums], target=[target])[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>3 * (4 + 5)</answer>", 1.0),
        ("<answer>\n 3*(4+5) \n</answer>", 1.0),
        ("<answer>3 * (4 + 5) = 27</answer>", 1.0),
        ("<answer>3 * (4 + 5) = 99 = x</answer>", 1.0),  # right of the first `=` is ignored
        ("<answer>3.0 * (4 + 5)</answer>", 1.0),
        (
            "<think><answer>3*(4+5)</answer></think><answer>1</answer>",
            1.0,
        ),  # the first block counts
        ("<answer>1</answer><answer>3*(4+5)</answer>", 0.0),
        ("<answer>27 = 3 * (4 + 5)</answer>", 0.0),
        ("<answer>3 * 4 + 5</answer>", 0.0),
        ("<answer>3 * (4 + 5) + 0</answer>", 0.0),
        ("<answer>3 * 9</answer>", 0.0),
        ("<answer>3 * (4 + 5)", 0.0),
        ("3 * (4 + 5)", 0.0),
        ("", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>3 × (4 + 5)</answer>", 0.0),
        ("<answer>３ * (4 + 5)</answer>", 0.0),
        ("</answer><answer>3*(4+5)</answer>", 1.0),
    ],
)
def test_score(text, expected):
    assert score(text, [3, 4, 5], 27) == expected


def test_numbers_are_a_multiset():
    assert score("<answer>2 + 2 + 3</answer>", [2, 3, 2], 7) == 1.0
    assert score("<answer>2 + 3 + 2</answer>", [2, 3, 3], 7) == 0.0
    assert score("<answer>34 - 2</answer>", [3, 4, 2], 32) == 0.0  # digits are not numbers


def test_tolerance_is_exact():
    assert score("<answer>1 / 3</answer>", [1, 3], 0.333333) == 1.0
    assert score("<answer>1 / 3</answer>", [1, 3], 0.3333) == 0.0
    assert score("<answer>1 / 3</answer>", [1, 3], 0.3333, tolerance=1e-3) == 1.0
    # in doubles 0.1 + 0.2 differs from 0.3
    assert (
        score(
            "<answer>.1 + .2 - .3</answer>", [Fraction(1, 10), Fraction(1, 5), Fraction(3, 10)], 0
        )
        == 1.0
    )


def test_floats_are_the_numbers_that_they_are_written_as():
    assert score("<answer>0.1 + 0.2</answer>", [0.1, 0.2], 0.3, tolerance=0.0) == 1.0
    assert score("<answer>0.1 + 0.2</answer>", [0.1, 0.2], 0.4) == 0.0
    assert score("<answer>0.1 + 0.2</answer>", [0.1, 0.3], 0.3) == 0.0
    assert fault("<answer>0.1 + 0.1</answer>", [0.2, 0.1], 1) == (
        "it uses the numbers 1/10, 1/10, but it must use 1/10, 1/5, each once"
    )


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "float64"])
def test_columns_of_numpy_and_torch(dtype):
    import numpy
    import torch

    for nums, target in (
        (([3, 4, 5], 27), ([0.1, 4, 5], 0.9)) if dtype.startswith("float") else (([3, 4, 5], 27),)
    ):
        text = f"<answer>{nums[0]} * (4 + 5)</answer>"
        of_numpy = numpy.array(nums, dtype=dtype), numpy.array(target, dtype=dtype)
        of_torch = (
            torch.tensor(nums, dtype=getattr(torch, dtype)),
            torch.tensor(target, dtype=getattr(torch, dtype)),
        )
        for kind in (of_numpy, (of_numpy[0], of_numpy[1][()]), of_torch):
            assert score(text, *kind, tolerance=0.0) == 1.0
            assert score(text, kind[0], kind[1] + 1) == 0.0


def test_conversational_completions_read_the_last_message():
    completion = [
        {"role": "tool", "content": "<answer>1</answer>"},
        {"role": "assistant", "content": "<answer>1+2</answer>"},
    ]
    assert build("countdown")(completions=[completion], nums=[[1, 2]], target=[3]) == [1.0]


@pytest.mark.parametrize(
    ("nums", "target"),
    [("1 2", 3), (["1", "2"], 3), ([1, 2], "3"), ([1, 2], None), (None, 3), ([1, 2], float("nan"))],
)
def test_bad_columns_are_said_to_be_bad(nums, target):
    with pytest.raises(TypeError):
        score("<answer>1 + 2</answer>", nums, target)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_agrees_with_a_reference_on_random_equations(nums, rng: random.Random):
    """Build an equation by merging values, so that its value is known without parsing it."""
    parts = [(str(n), Fraction(n)) for n in nums]
    rng.shuffle(parts)
    while len(parts) > 1:
        (a, x), (b, y) = parts.pop(), parts.pop()
        op = rng.choice("+-*/" if y else "+-*")
        parts.append(
            (
                f"({a} {op} {b})",
                {"+": x + y, "-": x - y, "*": x * y}.get(op) if op != "/" else x / y,
            )
        )
    text, result = parts[0]
    answer = f"<answer>{text}</answer>"
    assert score(answer, nums, float(result)) == 1.0
    assert score(answer, nums, float(result + 1)) == 0.0
    assert score(answer, [*nums, 1], float(result)) == 0.0
    assert score(answer, nums[:-1], float(result)) == 0.0


def test_every_order_of_the_numbers_is_the_same_problem():
    for nums in itertools.permutations([3, 4, 5, 6]):
        assert score("<answer>(3 + 4) * 5 - 6</answer>", list(nums), 29) == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "there is no closed <answer> block"),
        ("<answer>2 ** 3</answer>", "the answer is not a plain expression: '**' is not allowed"),
        ("<answer>2 + 2</answer>", "it uses the numbers 2, 2, but it must use 0, 2, 3, each once"),
        ("<answer>2 + 3 / 0</answer>", "it divides by zero"),
        ("<answer>2 / 3 + 0</answer>", "its value is 2/3, not 7"),
    ],
)
def test_faults_are_worded(text, words):
    nums = [2, 3, 0]
    target = 7
    assert fault(text, nums, target) == words


def test_a_huge_value_is_worded_briefly():
    text = "<answer>" + "*".join(["9" * 90] * 10) + "</answer>"
    nums = [int("9" * 90)] * 10
    assert fault(text, nums, 1) == "its value is a number of 900 digits, not 1"
