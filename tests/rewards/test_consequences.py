"""A consequence that follows the answer in its sentence: `accuracy` reads the answer before it."""

import pytest

from tests.support.accuracy import score

AGE = "Tom is older than his sister. In 6 years, their ages add up to 46. How old is Tom now?"
LATER = "Tom is 24. How old will Tom be in 6 years?"
TICKETS = (
    "A theater sold 150 adult tickets at $12 and made $2,430. How many child tickets were sold?"
)
ALL_TICKETS = "A theater sold adult and child tickets. How many tickets were sold?"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (AGE, "24", "Tom is therefore 24 years old now, and he will be 30 in 6 years.", 1),
        (AGE, "24", "So Tom is 24 years old now, and he will be 30 years old in 6 years.", 1),
        (AGE, "24", "Tom is therefore 30 years old now, and he will be 24 in 6 years.", 0),
        (AGE, "24", "Tom is therefore 24 years old now, or he is 30.", 0),
        (LATER, "30", "Tom is 24 years old, and he will be 30 in 6 years.", 1),
        (TICKETS, "90", "So they sold 90 child tickets, giving 240 tickets in total.", 1),
        (TICKETS, "90", "So they sold 90 child tickets, for a total of 240 tickets.", 1),
        (TICKETS, "90", "So they sold 240 child tickets, giving 90 tickets in total.", 0),
        (TICKETS, "90", "So they sold 90 child tickets, or 240 child tickets.", 0),
        (TICKETS, "90", "So they sold 90 child tickets, giving 240 child tickets.", 0),
        (ALL_TICKETS, "240", "They sold 90 child tickets, giving 240 tickets in total.", 1),
    ],
)
def test_a_consequence_behind_the_answer_does_not_count(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict
