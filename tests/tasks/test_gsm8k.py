"""GSM8K: stories whose arithmetic is right, splits that share none, and the real rows where they
are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_ext.tasks.gsm8k import GSM8K, STORIES

MARK = re.compile(r"(\d+)([-+*/])(\d+)=<<([^=]+)=(\d+)>>(\d+)")


def numbers(text: str) -> list[int]:
    return sorted(map(int, re.findall(r"\d+", text)))


def test_every_step_of_every_story_is_right() -> None:
    rows = list(GSM8K(num_problems=2_000).generate("train"))
    assert len(rows) == 2_000
    for row in rows:
        *steps, last = row["answer"].split("\n")
        assert 1 <= len(steps) <= 2
        for step in steps:
            x, sign, y, marked, in_mark, result = MARK.search(step).groups()
            assert marked == f"{x}{sign}{y}" and in_mark == result
            # the oracle checks by the inverse operation
            a = int(x)
            b = int(y)
            c = int(result)
            assert {
                "+": c - b == a,
                "-": c + b == a,
                "*": c // b == a and c % b == 0,
                "/": c * b == a,
            }[sign], step
            assert c > 0
        assert last == f"#### {result}"


def test_all_templates_are_met_and_use_all_their_numbers() -> None:
    answers = [row["answer"] for row in GSM8K(num_problems=3_000).generate("train")]
    for story in STORIES:
        sentences = [
            re.escape(sentence.split("{")[0])
            for _, sentence in story.steps
            if not sentence.startswith("{")
        ]
        assert not sentences or any(
            re.search(sentence, answer) for sentence in sentences for answer in answers
        )
        letters = set(re.findall(r"{([abc])}", story.question))
        used = {side for equation, _ in story.steps for side in equation.split() if side in "abc"}
        assert letters == used, story.question


def test_splits_share_no_question_whatever_the_seeds() -> None:
    train = {row["question"] for row in GSM8K(num_problems=5_000, task_seed=1).generate("train")}
    test = {row["question"] for row in GSM8K(num_test_problems=500, task_seed=2).generate("test")}
    assert len(train) == 5_000 and len(test) == 500 and not train & test


def test_splits_share_no_numbers_of_a_template_either() -> None:
    def shape(question: str) -> str:
        for name in re.findall(r"[A-Z]\w+", question):
            question = question.replace(name, "N")
        return re.sub(
            r"\b(apples|books|coins|cups|eggs|flowers|kites|lemons|marbles|pens|shells|stamps)\b",
            "T",
            question,
        )

    train = {shape(row["question"]) for row in GSM8K(num_problems=3_000).generate("train")}
    test = {shape(row["question"]) for row in GSM8K(num_test_problems=500).generate("test")}
    assert len(test) > 50 and not train & test


def test_one_step_only() -> None:
    assert all(
        row["answer"].count("<<") == 1
        for row in GSM8K(max_story_steps=1, num_problems=300).generate("train")
    )


def test_a_small_space_ends() -> None:
    rows = list(GSM8K(max_number=3, max_story_steps=1, num_problems=10**6).generate("train"))
    assert 100 < len(rows) < 10**6


def test_same_seed_same_rows() -> None:
    rows = list(GSM8K(num_problems=50).generate("train"))
    assert rows == list(GSM8K(num_problems=50).generate("train"))
    assert rows != list(GSM8K(num_problems=50, task_seed=1).generate("train"))


def test_examples_have_what_rewards_read() -> None:
    from grpo_ext.rewards import build

    example = GSM8K(num_problems=3).dataset()[0]
    gold = example["solution"].rsplit("#### ", 1)[1]
    assert [message["role"] for message in example["prompt"]] == ["system", "user"]
    right = f"<think>\nx\n</think>\n<answer>\n{gold}\n</answer>"
    wrong = f"<think>\nx\n</think>\n<answer>\n{int(gold) + 1}\n</answer>"
    columns = {
        "solution": [example["solution"]] * 2,
        "prompts": ["", ""],
        "completion_ids": [[], []],
    }
    assert build("accuracy")(completions=[right, wrong], **columns) == [1.0, 0.0]
    assert build("format")(completions=[right, "42"], **columns) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"max_number": 2}, "max_number"), ({"max_story_steps": 3}, "max_story_steps")],
)
def test_wrong_fields_are_named(fields: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        GSM8K(**fields)


def test_real_rows(shared_data: Path) -> None:
    path = shared_data / "gsm8k_train.jsonl"
    rows = GSM8K().dataset(dataset_name=str(path))
    everything = path.read_text(encoding="utf-8").splitlines()
    assert len(everything) == len(rows) == 2048
    assert all("####" in solution for solution in rows["solution"])
    assert rows[0]["prompt"][-1]["content"] == rows[0]["question"]
    streamed = GSM8K().dataset(dataset_name=str(path), streaming=True, limit=3)
    assert [row["question"] for row in streamed] == [
        json.loads(line)["question"] for line in everything[:3]
    ]
