"""Answers in words: bold in LaTeX, remarks behind them, and words that the question offers."""

import pytest

from tests.support.accuracy import score

TRIANGLE = "A triangle has sides of 5, 5 and 8. Is it equilateral, isosceles or scalene?"
SODIUM = "What is the chemical symbol for sodium?"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (TRIANGLE, "isosceles", "Two sides are equal, so it is \\textbf{isosceles}.", 1),
        (TRIANGLE, "isosceles", "It is $\\textbf{isosceles}$.", 1),
        (TRIANGLE, "isosceles", "Two sides are equal, so it is \\textbf{scalene}.", 0),
        (TRIANGLE, "isosceles", "It is not \\textbf{isosceles}, but \\textbf{scalene}.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles.", 1),
        (TRIANGLE, "isosceles", "The triangle is scalene.", 0),
        (TRIANGLE, "isosceles", "The triangle is not isosceles.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles or scalene.", 0),
        (TRIANGLE, "isosceles", "The triangle is isosceles, scalene.", 0),
        ("Is 91 prime or composite?", "composite", "As 91 = 7 · 13, 91 is composite.", 1),
        ("Is 91 prime or composite?", "composite", "91 is prime.", 0),
        (SODIUM, "Na", "The symbol is **Na** (from the Latin *natrium*).", 1),
        (SODIUM, "Na", "The symbol is **N** (from the Latin *natrium*).", 0),
        (SODIUM, "Na", "The symbol is **So** (which is not **Na**).", 0),
        (SODIUM, "So", "The symbol is **So** (which may be Na or So).", 0),
        (SODIUM, "So", "The symbol is **So** (or Na).", 0),
    ],
)
def test_answers_in_words(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict
