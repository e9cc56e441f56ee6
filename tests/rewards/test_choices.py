"""How `accuracy` reads gold answers and completions that name a choice of the question."""

import pytest

from tests.support.accuracy import score

VECTORS = """Which of the following is a vector quantity?
A) Speed
B) Mass
C) Displacement
D) Temperature"""
PLANETS = """Which planet is known as the Red Planet?
(1) Venus
(2) Mars
(3) Jupiter
(4) Saturn"""
CAPITALS = """What is the capital of Canada?
(A) Toronto
(B) Montreal
(C) Ottawa
(D) Vancouver"""


@pytest.mark.parametrize(
    "gold", ["C) Displacement", "(C) Displacement", "C: Displacement", "C. Displacement", "C"]
)
@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("C", 1),
        ("The answer is C.", 1),
        ("The answer is (C) Displacement.", 1),
        ("\\boxed{\\text{Displacement}}", 1),
        ("A quantity that is a vector is **displacement**.", 1),
        ("A", 0),
        ("The answer is (A) Speed.", 0),
        ("\\boxed{\\text{Speed}}", 0),
        ("\\boxed{\\text{Displacement or Speed}}", 0),
        ("\\boxed{\\text{A) Displacement}}", 0),
    ],
)
def test_a_gold_answer_may_be_a_letter_with_its_content(gold, completion, verdict):
    assert score(VECTORS, gold, completion) == verdict


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (PLANETS, "(2) Mars", "Mars", 1),
        (PLANETS, "(2) Mars", "\\boxed{\\text{Mars}}", 1),
        (PLANETS, "(2) Mars", "The answer is Mars.", 1),
        (PLANETS, "(2) Mars", "**Mars** is known as the Red Planet.", 1),
        (PLANETS, "(2) Mars", "\\boxed{(2)}", 1),
        (PLANETS, "(2) Mars", "The answer is (2) Mars.", 1),
        (PLANETS, "(2) Mars", "Jupiter", 0),
        (PLANETS, "(2) Mars", "\\boxed{3}", 0),
        (PLANETS, "(2) Mars", "The answer is (3) Jupiter.", 0),
        (PLANETS, "(2) Mars", "The answer is Mars or Jupiter.", 0),
        ("How many are true?\n(1) Air burns.\n(2) Ice floats.", "2", "\\boxed{2}", 1),
        ("How many are true?\n(1) Air burns.\n(2) Ice floats.", "2", "Ice floats.", 0),
    ],
)
def test_a_gold_answer_may_be_a_number_with_its_content(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("The capital of Canada is Ottawa.", 1),
        ("Ottawa is the capital of Canada.", 1),
        ("Toronto is the largest city. So the capital of Canada is Ottawa.", 1),
        ("The capital of Canada is Toronto.", 0),
        ("The capital of Canada is not Ottawa.", 0),
        ("The capital of Canada is Ottawa or Toronto.", 0),
        ("The capital of Canada is Ottawa, Toronto.", 0),
        ("The capital of Canada is larger than Ottawa.", 0),
        ("The capital of Canada lies in Ottawa's province.", 0),
        ("Some people live in Ottawa.", 0),
    ],
)
def test_a_last_sentence_that_names_one_choice_chooses_it(completion, verdict):
    assert score(CAPITALS, "C", completion) == verdict
