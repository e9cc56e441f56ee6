"""The table of answers: kind, gold answer, completion (`⏎` is a line break), verdict of a careful person."""

from collections import Counter
from pathlib import Path

from grpo_ext.rewards import build

TABLE = Path(__file__).with_name("answers.tsv")
VERDICTS = {"1": 1.0, "0": 0.0, "None": None}


def table() -> list[list[str]]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return [line.replace("⏎", "\n").split("\t") for line in lines]


def test_every_answer_is_judged_as_a_careful_person_would():
    wrong = []
    for kind, gold, completion, verdict in table():
        [score] = build("accuracy")(completions=[completion], solution=[gold])
        if score != VERDICTS[verdict]:
            wrong.append((kind, gold, completion, verdict, score))
    assert wrong == []


def test_the_table_has_all_kinds():
    kinds = Counter(kind for kind, *_ in table())
    assert len(kinds) >= 20 and sum(kinds.values()) >= 400 and min(kinds.values()) >= 10
