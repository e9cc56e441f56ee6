"""Vectors and sets whose equation names what the question asks for, and sets in plain braces."""

import pytest

from tests.support.accuracy import score

VECTOR = (
    "Let $\\mathbf{a} = (2, -1, 3)$, $\\mathbf{b} = (0, 4, -2)$. Find $\\mathbf{a} + 2\\mathbf{b}$."
)
SUM_OF_VECTORS = "\\langle 2, 7, -1 \\rangle"
SETS = "Let $A = \\{1, 2, 5, 8\\}$ and $B = \\{2, 5, 8\\}$. Find $A \\cap B$."
INTERSECTION = "\\{2, 5, 8\\}"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (VECTOR, SUM_OF_VECTORS, "$\\mathbf{a}+2\\mathbf{b}=(2, 7, -1)$", 1),
        (VECTOR, SUM_OF_VECTORS, "$2\\mathbf{b}+\\mathbf{a}=\\langle 2,7,-1\\rangle$", 1),
        (VECTOR, SUM_OF_VECTORS, "\\boxed{\\vec{a}+2\\vec{b}=(2, 7, -1)}", 1),
        (VECTOR, SUM_OF_VECTORS, "$\\mathbf{a}+2\\mathbf{b}=(2, 7, 1)$", 0),
        (VECTOR, SUM_OF_VECTORS, "$\\mathbf{a}+\\mathbf{b}=(2, 7, -1)$", 0),
        (VECTOR, SUM_OF_VECTORS, "\\boxed{\\mathbf{a}+2\\mathbf{b}}", 0),
        (SETS, INTERSECTION, "**A ∩ B = {2, 5, 8}**", 1),
        (SETS, INTERSECTION, "So A ∩ B = {8, 2, 5}.", 1),
        (SETS, INTERSECTION, "**{2, 5, 8}**", 1),
        (SETS, INTERSECTION, "**A ∪ B = {2, 5, 8}**", 0),
        (SETS, INTERSECTION, "**A ∩ B = {2, 5}**", 0),
        (SETS, INTERSECTION, "**{2, 5, 9}**", 0),
        ("Find the point.", "(2, 5)", "**{2, 5}**", 0),
    ],
)
def test_what_is_asked_may_be_a_vector_or_a_set(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict
