"""Forms that a question asks for: `accuracy` pays only answers that have them."""

import pytest

from grpo_ext.rewards import build


def score(question, gold, completion):
    [verdict] = build("accuracy")(completions=[completion], solution=[gold], prompts=[question])
    return verdict


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
