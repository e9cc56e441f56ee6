"""How `accuracy` reads amounts of money.

Each right answer has a wrong neighbour of the same form.
"""

from __future__ import annotations

import pytest

from grpo_ext.rewards import build

EUROS = "Ann pays €30 and Bob pays €18. How much do they pay in total?"
POUNDS = "Ann pays £30 and Bob pays £18. How much do they pay in total?"


def score(gold: str, completion: str, question: str | None = None) -> float | None:
    prompts = None
    if question is not None:
        prompts = [[{"role": "user", "content": question}]]
    [verdict] = build("accuracy")(completions=[completion], solution=[gold], prompts=prompts)
    return verdict


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("48", "€30 + €18 = €48", "€30 + €18 = €49"),
        ("48", "£30 + £18 = £48", "£30 + £19 = £48"),
        ("48", "<answer>€30 + €18 = €48</answer>", "<answer>€30 + €18 = €84</answer>"),
        ("48", r"\boxed{£30 + £18 = £48}", r"\boxed{£30 + £18 = £47}"),
        ("€48", "€30 + €18 = €48", "€30 + €18 = £48"),
        ("48", "€30 + €18 = €48", "€30 + £18 = €48"),
        ("£48", "£30 + £18 = 48", "€30 + €18 = 48"),
        ("12.50", "£5.00 × 2.5 = £12.50", "£5.00 × 2.5 = £12.05"),
        ("1200", "€400 × 3 = €1,200", "€400 × 3 = €1,20"),
        ("₹48", "₹30 + ₹18 = ₹48", "₹30 + ₹18 = ₹47"),
        ("¥48", "¥30 + ¥18 = ¥48", "¥30 + ¥18 = ¥38"),
        ("₹500", "<answer>₹500</answer>", "<answer>₹50</answer>"),
        ("₹500", "<answer>500</answer>", "<answer>$500</answer>"),
        ("500", "<answer>₹500</answer>", "<answer>₹600</answer>"),
        ("₹500", "It costs ₹500.", "It costs ₹501."),
        ("₹500", "<answer>500 rupees</answer>", "<answer>500 dollars</answer>"),
        ("₹500", "<answer>Rs. 500</answer>", "<answer>Rs. 50</answer>"),
        ("₹2.5 million", "<answer>₹2,500,000</answer>", "<answer>₹2.5</answer>"),
        ("¥1200", "<answer>¥1,200</answer>", "<answer>₹1,200</answer>"),
        ("¥1200", "<answer>1200 yen</answer>", "<answer>1200 euros</answer>"),
        ("￥1200", r"\boxed{\yen 1200}", r"\boxed{\yen 1201}"),
    ],
)
def test_amounts_of_money(gold, right, wrong):
    assert score(gold, right) == 1.0
    assert score(gold, wrong) == 0.0


@pytest.mark.parametrize(
    ("question", "gold", "right", "wrong"),
    [
        (EUROS, "48", "The answer is €30 + €18 = €48.", "The answer is €30 + €18 = €50."),
        (EUROS, "€48", "Together, €30 + €18 = €48.", "Together, €30 + €18 = €46."),
        (POUNDS, "48", "In total, £30 + £18 = £48.", "In total, £30 - £18 = £12."),
        (POUNDS, "£48", "They pay £48 in total.", "They pay €48 in total."),
    ],
)
def test_sums_of_money_that_a_question_asks_for(question, gold, right, wrong):
    assert score(gold, right, question) == 1.0
    assert score(gold, wrong, question) == 0.0
