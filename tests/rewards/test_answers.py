"""The table of answers.

Kind, gold answer, completion (`⏎` is a line break), verdict of a careful person.
"""

from collections import Counter
from pathlib import Path

import pytest

from grpo_ext.rewards import build
from tests.support.logs import json_rows

REAL = [Path(__file__).with_name(f"answers_{name}.tsv") for name in ("real", "fresh", "third")]
WITH_QUESTIONS = Path(__file__).with_name("answers_with_questions.jsonl")
UNMARKED = Path(__file__).with_name("answers_unmarked.jsonl")
MIXED = Path(__file__).with_name("answers_mixed.jsonl")
MIRRORED = Path(__file__).with_name("answers_mirrored.jsonl")
TABLE = Path(__file__).with_name("answers.tsv")
VERDICTS = {"1": 1.0, "0": 0.0, "None": None}
MISJUDGED = {  # right by the table, 0 by the reward, and why
    "<answer>square root of 2</answer>": "formulas in words are not read",
}


def table() -> list[list[str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return [line.replace("⏎", "\n").split("\t") for line in lines]


def test_every_answer_is_judged_as_a_careful_person_would():
    wrong = {}
    for kind, gold, completion, verdict in table():
        [score] = build("accuracy")(completions=[completion], solution=[gold])
        if score != VERDICTS[verdict]:
            wrong[completion] = (kind, gold, verdict, score)
    assert set(wrong) == set(MISJUDGED), {
        text: why for text, why in wrong.items() if text not in MISJUDGED
    }
    assert all(score == 0.0 for *_, score in wrong.values())


def test_the_table_has_all_kinds():
    kinds = Counter(kind for kind, *_ in table())
    assert len(kinds) >= 20 and sum(kinds.values()) >= 400 and min(kinds.values()) >= 10


@pytest.mark.parametrize("table", REAL, ids=lambda path: path.stem)
def test_answers_to_real_rows(table):
    """Columns: source of the row, its gold answer, completion, verdict. Judged by hand before
    `accuracy` was run on them.

    The gold answers are those of real rows; the completions are written as models write them, right
    in other forms and wrong by what models get wrong. 1 is what a teacher accepts who knows the
    question from the gold answer alone.
    """
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    reward = build("accuracy")
    paid = []
    refused = []
    for _, gold, completion, verdict in rows:
        texts = {
            "completions": [completion.replace("⏎", "\n")],
            "solution": [gold.replace("⏎", "\n")],
        }
        [score] = reward(**texts)
        if score == 1.0 and verdict == "0":
            paid.append((gold, completion))
        elif score != VERDICTS[verdict]:
            refused.append((gold, completion))
    assert len(rows) >= 100
    assert len(paid) <= 0.02 * len(rows), paid
    assert len(refused) <= 0.05 * len(rows), refused


def judged(table: Path) -> tuple[list[dict], list[dict], list[dict]]:
    """Return the rows of a table, the wrong ones that are paid, and the right ones that are not."""
    rows = json_rows(table)
    scores = build("accuracy")(
        completions=[row["completion"] for row in rows],
        solution=[row["gold"] for row in rows],
        prompts=[[{"role": "user", "content": row["question"]}] for row in rows],
    )
    paid = [row for row, score in zip(rows, scores, strict=True) if score == 1.0 > row["right"]]
    refused = [row for row, score in zip(rows, scores, strict=True) if score != 1.0 == row["right"]]
    return rows, paid, refused


def test_answers_to_real_questions():
    """Pairs with their questions, judged by hand before `accuracy` was run on them.

    Labels of decimals with fewer than six digits follow docs/rewards.md: they are wrong for a
    value that has no end.
    """
    rows, paid, refused = judged(WITH_QUESTIONS)
    assert len(rows) >= 800
    assert not paid
    assert len(refused) <= 0.01 * len(rows), refused


def test_answers_that_nothing_marks():
    """Answers in a last sentence without box, tag or "the answer is", judged by hand before
    `accuracy` was run on them. Wrong ones list candidates, restate the question and hedge.
    """
    rows, paid, refused = judged(UNMARKED)
    assert len(rows) >= 1_500
    assert len(paid) <= 0.02 * sum(not row["right"] for row in rows), paid
    assert len(refused) <= 0.05 * sum(row["right"] for row in rows), refused


def test_answers_of_all_kinds():
    """Four sets of 200 pairs and one of 198, marked and unmarked, of numbers, formulas, units,
    choices, dates and names, judged by hand before `accuracy` was run on them. The last set was
    chosen to be hard.
    """
    rows, paid, refused = judged(MIXED)
    assert len(rows) == 998
    assert not paid
    assert len(refused) <= 9, refused


def test_rules_hold_in_both_directions():
    """Each form comes with the right answer and, in the same form, with a wrong one."""
    rows, paid, refused = judged(MIRRORED)
    assert len(rows) >= 880
    assert not paid
    assert len(refused) <= 22, refused
