"""Reasons and checks beside an answer: `accuracy` does not take their formulas for the answer."""

import pytest

from tests.support.accuracy import score

SUM = "Given that $x$ and $y$ are positive and $xy = 24$, find $x + y$."
ROOTS = "Find all $x$ with $x^2 = 9$."
PRICE = "A TV costs $640 after a discount of 20%. What was the original price?"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (SUM, "10", "So $x + y = \\pm 10$. Since $x, y > 0$, $x+y = 10$.", 1),
        (SUM, "10", "Since $x > 0$, $x+y = 10$.", 1),
        (SUM, "10", "Because $x>0$ and $y>0$, $x + y = 10$.", 1),
        (SUM, "10", "As \\(x > 0\\), \\(x+y = 10\\).", 1),
        (SUM, "10", "Since $x > 0$, $x+y = 11$.", 0),
        (SUM, "10", "Since $x+y = 10$, $x+y = 11$.", 0),
        (SUM, "10", "Because $x>0$ and $y>0$, $x + y = 10$ or $x + y = 11$.", 0),
        (SUM, "10", "If $x > 0$, $x+y = 10$.", 0),
        (ROOTS, "3, -3", "Since $9 = 3^2$, $x = 3$ or $x = -3$.", 1),
        (ROOTS, "3, -3", "Hence $x = 3$, $x = -3$.", 1),
        (ROOTS, "3, -3", "Since $x = -3$, $x = 3$.", 0),
        (ROOTS, "3, -3", "Since $x^2 = 9$ and $x > 0$, $x = 3$.", 0),
    ],
)
def test_a_reason_before_a_comma_is_not_in_the_list(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("The price was $800.\n\nDouble-check: $800 × 0.20 = $160 and $800 − $160 = $640 ✓", 1),
        ("The price was $800.\n\nDouble check: 800 × 0.8 = 640", 1),
        ("The price was $800. Let me double-check: 800 × 0.8 = 640.", 1),
        ("The price was $640.\n\nDouble-check: $640 + $160 = $800", 0),
        ("The price was $800.\n\nDouble-check: 800 × 0.8 = 640, so it was $640.", 0),
        ("Double-check: $640 / 0.8 = $700", 0),
    ],
)
def test_a_double_check_is_not_the_answer(completion, verdict):
    assert score(PRICE, "800", completion) == verdict
