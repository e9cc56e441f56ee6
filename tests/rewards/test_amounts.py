"""How `accuracy` reads amounts of money, sentences in an `<answer>`, and sizes of what is counted.

Each right answer has a wrong neighbor of the same form.
"""

from __future__ import annotations

import pytest

from grpo_ext.rewards import build

EUROS = "Ann pays €30 and Bob pays €18. How much do they pay in total?"
POUNDS = "Ann pays £30 and Bob pays £18. How much do they pay in total?"
BAGS = "Seth has 28 lollipops. He puts 2 lollipops in each bag. How many bags does he fill?"
AGES = "Seth is twice as old as Brooke, who is 8 years old. How old is Seth?"
MILK = "Tom needs 2 L of milk. Milk comes in cartons of 1 L. How many cartons does he buy?"
ROPE = "A rope of 12 m is cut into 3 equal pieces. How long is each piece?"


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


@pytest.mark.parametrize(
    ("question", "gold", "right", "wrong"),
    [
        (
            BAGS,
            "14",
            "Seth fills 14 bags with 2 lollipops each.",
            "Seth fills 7 bags with 14 lollipops each.",
        ),
        (
            BAGS,
            "14",
            "He divides 28 by 2. So he fills 14 bags with 2 lollipops each.",
            "He could fill 14 bags. He fills 13 bags with 2 lollipops each.",
        ),
        (BAGS, "14", "14 bags", "14 bags or 13 bags"),
        (BAGS, "14", "He fills 14 bags.", "He fills 14 bags, so 28."),
        (AGES, "16", "Seth is 16 and Brooke is 8.", "Seth is 8 and Brooke is 16."),
        (AGES, "16", "Seth is 16.", "Seth is not 16."),
        (
            BAGS,
            "14",
            "Seth fills 14 bags.\nNote: each has 2 lollipops.",
            "Seth fills 2 bags.\nNote: each has 14 lollipops.",
        ),
    ],
)
def test_the_last_sentence_in_a_tag_is_read_as_without_it(question, gold, right, wrong):
    for form in ("<answer>{}</answer>", "{}"):
        assert score(gold, form.format(right), question) == 1.0
        assert score(gold, form.format(wrong), question) == 0.0


@pytest.mark.parametrize(
    ("question", "gold", "right", "wrong"),
    [
        (None, "2", "2 cartons of 1L milk", "3 cartons of 2L milk"),
        (None, "2", "2 cartons of 1 L milk", "1 carton of 2 L milk"),
        (MILK, "2", "He buys 2 cartons of 1L milk.", "He buys 1 carton of 2L milk."),
        (None, "6", "He needs 6 bags of 5 kg flour.", "He needs 5 bags of 6 kg flour."),
        (ROPE, "4", "He gets 3 pieces of 4 m rope.", "He gets 4 pieces of 3 m rope."),
        (None, "10", "2 rolls of 5 m ribbon are 10 m", "2 rolls of 10 m ribbon are 20 m"),
        (None, "5", "2 trips of 5 km each", "5 trips of 2 km each"),
    ],
)
def test_the_size_of_what_is_counted_is_not_the_count(question, gold, right, wrong):
    for form in ("<answer>{}</answer>", "{}"):
        assert score(gold, form.format(right), question) == 1.0
        assert score(gold, form.format(wrong), question) == 0.0
