"""Forms that a question asks for: `accuracy` pays only answers that have them."""

import pytest

from grpo_ext.rewards.answer_forms import is_product_of_primes, is_reduced
from tests.support.accuracy import score

PRIMES = "Find the prime factorization of 360."
PRIME_FACTORS = "2^3 \\cdot 3^2 \\cdot 5"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (PRIMES, PRIME_FACTORS, "\\boxed{2^3 \\cdot 9 \\cdot 5}", 0),
        (PRIMES, PRIME_FACTORS, "\\boxed{4 \\cdot 90}", 0),
        (PRIMES, PRIME_FACTORS, "\\boxed{6^2 \\cdot 10}", 0),
        (PRIMES, PRIME_FACTORS, "\\boxed{(2 \\cdot 3)^2 \\cdot 2 \\cdot 5}", 0),
        (PRIMES, PRIME_FACTORS, "So 360 = 8 × 9 × 5.", 0),
        (PRIMES, PRIME_FACTORS, "\\boxed{2^3 \\cdot 3^2 \\cdot 7}", 0),
        (PRIMES, PRIME_FACTORS, "\\boxed{5 \\times 3^{2} \\times 2^{3}}", 1),
        (PRIMES, PRIME_FACTORS, "\\boxed{2^3(3^2)(5)}", 1),
        (PRIMES, PRIME_FACTORS, "\\boxed{2^3 \\cdot 3^2 \\cdot 5 = 360}", 1),
        (PRIMES, PRIME_FACTORS, "So 360 = 2 × 2 × 2 × 3 × 3 × 5.", 1),
        ("Write 84 as a product of prime numbers.", "2^2 \\cdot 3 \\cdot 7", "$4 \\cdot 21$", 0),
        ("Write 84 as a product of prime numbers.", "2^2 \\cdot 3 \\cdot 7", "84 = 2²·3·7", 1),
        ("Write 84 as a product of two integers.", "7 \\cdot 12", "\\boxed{4 \\cdot 21}", 1),
        ("What is the largest prime in the prime factorization of 64?", "2", "It is two.", 1),
    ],
)
def test_a_prime_factorization_has_only_primes(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


INVERSE = "Let $z = 3 - 4i$. Find $1/z$ in the form $a+bi$."
INVERSE_IN_FORM = "\\frac{3}{25}+\\frac{4}{25}i"
ROOT = "What is the principal cube root of this number?"
ROOT_IN_FORM = "\\frac{1}{2}+\\frac{\\sqrt{3}}{2}i"
CUBE_ROOTS = "2, -1+\\sqrt{3}i, -1-\\sqrt{3}i"
CUBE_ROOTS_AS_POWERS = "\\boxed{2, 2e^{2\\pi i/3}, 2e^{-2\\pi i/3}}"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (INVERSE, INVERSE_IN_FORM, "\\boxed{\\frac{1}{3-4i}}", 0),
        (INVERSE, INVERSE_IN_FORM, "So 1/z = 1/(3-4i).", 0),
        (INVERSE, INVERSE_IN_FORM, "\\boxed{(3-4i)^{-1}}", 0),
        (INVERSE, INVERSE_IN_FORM, "\\boxed{\\frac{\\sqrt{4}}{\\sqrt{36}-8i}}", 0),
        (INVERSE, INVERSE_IN_FORM, "\\boxed{\\frac{3}{25}-\\frac{4}{25}i}", 0),
        (INVERSE, INVERSE_IN_FORM, "\\boxed{\\frac{3+4i}{25}}", 1),
        (INVERSE, INVERSE_IN_FORM, "\\boxed{\\frac{1}{25}(3+4i)}", 1),
        (INVERSE, INVERSE_IN_FORM, "So $\\frac{1}{3-4i} = \\frac{4i}{25} + \\frac{3}{25}$.", 1),
        (INVERSE, INVERSE_IN_FORM, "So 1/z = 3/25 + 4i/25.", 1),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{(3-4i)^2}", 0),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{(3-4i)(3-4i)}", 0),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{9-24i+16i^2}", 0),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{9-24i-16}", 0),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{(3-4i)^2 = -7-24i}", 1),
        ("Compute $z^2$ for $z = 3 - 4i$.", "-7-24i", "\\boxed{-(7+24i)}", 1),
        ("Compute $2/w$ for $w = 1 + i$.", "1-i", "\\boxed{\\frac{2}{1+i}}", 0),
        ("Compute $2/w$ for $w = 1 + i$.", "1-i", "\\boxed{1-i}", 1),
        (ROOT, ROOT_IN_FORM, "\\boxed{e^{i\\pi/3}}", 0),
        (ROOT, ROOT_IN_FORM, "\\boxed{\\cos 60^\\circ + i \\sin 60^\\circ}", 0),
        (ROOT, ROOT_IN_FORM, "\\boxed{\\frac{1+i\\sqrt{3}}{2}}", 1),
        ("Write it in polar form.", "2e^{i\\pi/3}", "\\boxed{2e^{\\pi i/3}}", 1),
        ("Solve $z^2+2z+4=0$.", "-1\\pm\\sqrt{3}i", "\\boxed{-1+\\sqrt{3}i, -1-\\sqrt{3}i}", 1),
        ("Solve $z^3=8$.", CUBE_ROOTS, CUBE_ROOTS_AS_POWERS, 1),
    ],
)
def test_a_complex_number_is_computed(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


CUBIC = "Factor completely $4x^3 - 36x$."
CUBIC_FACTORS = "4x(x-3)(x+3)"
QUADRATIC = "Factor completely $2x^2 + 10x + 12$."


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (CUBIC, CUBIC_FACTORS, "\\boxed{4x(x^2-9)}", 0),
        (CUBIC, CUBIC_FACTORS, "\\boxed{x(4x^2-36)}", 0),
        (CUBIC, CUBIC_FACTORS, "So $4x^3 - 36x = 4x(x^2-9) = 4x(x+3)(x-3)$.", 1),
        ("Factor $x^4 - 16$.", "(x-2)(x+2)(x^2+4)", "\\boxed{(x^2-4)(x^2+4)}", 0),
        (QUADRATIC, "2(x+2)(x+3)", "\\boxed{(2x+4)(x+3)}", 0),
        (QUADRATIC, "(2x+4)(x+3)", "\\boxed{2(x+2)(x+3)}", 1),
        ("Factor $x^3 + 4x^2 + 3x$.", "x(x+1)(x+3)", "\\boxed{(x^2+3x)(x+1)}", 0),
        ("Factor $x^2 - 2x + 1$.", "(x-1)^2", "\\boxed{(x-1)(x-1)}", 1),
        ("Factor $x^2 - 2x + 1$.", "(x-1)(x-1)", "\\boxed{(1-x)^{2}}", 1),
    ],
)
def test_a_factored_answer_has_all_factors(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("2^2", True),
        ("2 \\cdot 3", True),
        ("2^2 \\cdot 3^1", True),
        ("7", False),
        ("7^1", False),
        ("2^0 \\cdot 7 \\cdot 3", False),
        ("4 \\cdot 3", False),
    ],
)
def test_a_product_of_primes_has_two_or_more(formula, expected):
    assert is_product_of_primes(formula) == expected


@pytest.mark.parametrize(
    ("fraction", "reduced"),
    [
        ("\\frac{3xyz}{x}", False),
        ("\\frac{\\alpha x}{2x}", False),
        ("\\frac{2\\pi}{\\pi}", False),
        ("\\frac{\\ln 2}{\\ln 3}", True),
        ("\\frac{ln x}{x}", True),
        ("\\frac{f(x)}{g(x)}", True),
        ("\\frac{3 \\cdot x}{4 \\cdot y}", True),
    ],
)
def test_a_fraction_of_products_is_reduced_if_they_share_no_symbol(fraction, reduced):
    assert is_reduced(fraction) == reduced
