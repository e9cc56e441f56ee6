"""Rows of public shapes, in `row_shapes/`: what `init` proposes, and whether `check` lets it pass.

A careful person would set the prompt, the gold answer and the reward in the same way, or would ask
first. Where `init` asks, `check` refuses the recipe until the question is answered.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.propose import propose
from grpo_ext.tasks.templates import fill
from tests.support.places import REPO

SHAPES = REPO / "tests" / "preflight" / "row_shapes"
MATHS = "Think step by step. Put the final answer in \\boxed{}."
NUMBER = "Think, then give the number in <answer> tags."
TEXT = "Think, then give nothing but the answer in <answer> tags."
LETTER = "Think, then end with: The answer is (X)."
PROGRAM = "Think, then write the program in one ```python block."
UNWRITTEN = "my_reward"
EXACT = {"name": "exact", "ignore_case": True}


@dataclass
class Shape:
    """What `init` proposes for rows; `asks` is a part of what it asks, if anything."""

    prompt: str  # the template, or the column of messages
    reward: Any
    rename: dict[str, str] | None = None
    answer_column: str | None = None
    system: str | None = None
    asks: str = ""
    first_prompt: list[str] = field(default_factory=list)  # parts of the first prompt


WRITE = "Write the reward my_reward in mine/rewards.py"
EXPECTED = {
    "chat_messages": Shape("messages", UNWRITTEN, asks=WRITE),
    "alpaca": Shape(
        "{instruction}\n\n{input}", UNWRITTEN, rename={"reference": "output"}, asks=WRITE
    ),
    "verl": Shape("prompt", "number", rename={"solution": "reward_model.ground_truth"}),
    "ms_swift": Shape("messages", "accuracy", system=MATHS),
    "supervised": Shape("messages", "accuracy", answer_column="solution", system=MATHS),
    "supervised_open": Shape("messages", UNWRITTEN, answer_column="reference", asks=WRITE),
    "nested_gold": Shape(
        "{problem}", "number", rename={"solution": "metadata.answer"}, system=NUMBER
    ),
    "sharegpt": Shape("conversations", UNWRITTEN, answer_column="reference", asks=WRITE),
    "gsm8k": Shape("{question}", "accuracy", rename={"solution": "answer"}, system=MATHS),
    "math": Shape("{problem}", "accuracy", system=MATHS),
    "mmlu": Shape(
        "{question}\n{choices:letters}",
        {"name": "choice", "first_index": 0},
        rename={"solution": "answer"},
        system=LETTER,
        first_prompt=["France?\nA) Paris\nB) Nairobi\nC) Madrid\nD) Oslo"],
    ),
    "arc": Shape(
        "{question}\n{choices[text]:letters}",
        "choice",
        rename={"solution": "answerKey"},
        system=LETTER,
        first_prompt=["\nA) ", "\nC) "],
    ),
    "option_columns": Shape(
        "{question}\nA) {opa}\nB) {opb}\nC) {opc}\nD) {opd}",
        {"name": "choice", "first_index": 0},
        rename={"solution": "cop"},
        system=LETTER,
    ),
    "preference": Shape("{prompt}", UNWRITTEN, asks="train a reward model on them, or use DPO"),
    "judged_completions": Shape("{prompt}", UNWRITTEN, asks="label judges only the completion"),
    "prompt_completion": Shape(
        "{prompt}", "number", rename={"solution": "completion"}, system=NUMBER
    ),
    "message_completion": Shape(
        "prompt",
        UNWRITTEN,
        rename={"reference": "completion"},
        asks="the column completion has mappings",
    ),
    "ifeval": Shape("{prompt}", "instructions"),
    "mbpp": Shape(
        "{text}\n\nThe program must pass tests such as this one:\n{test_list[0]}",
        "code",
        rename={"tests": "test_list"},
        system=PROGRAM,
        first_prompt=["assert add_each([1, 2]) == [3, 4]"],
    ),
    "code_inputs": Shape("{prompt}", "code", rename={"tests": "test_cases"}, system=PROGRAM),
    "humaneval": Shape("{prompt}", UNWRITTEN, asks="tests in a form that the reward `code`"),
    "squad": Shape(
        "{question}\n\n{context}", EXACT, rename={"solution": "answers.text"}, system=TEXT
    ),
    "classification": Shape(
        "{text}\n\nAnswer with one of: negative, positive.",
        EXACT,
        rename={"solution": "label"},
        system=TEXT,
    ),
    "numbered_labels": Shape(
        "TO DO: say what the numbers mean: 0, 1\n\n{text}",
        "exact",
        rename={"solution": "label"},
        system=TEXT,
        asks="What do the numbers of label mean (0, 1)?",
    ),
    "inference": Shape(
        "TO DO: say what the model should do with this text.\n\n{premise}\n\n{hypothesis}",
        "number",
        rename={"solution": "label"},
        system=NUMBER,
        asks="should do with premise, hypothesis. The other columns are label.",
    ),
    "yes_or_no": Shape(
        "{question}\n\n{passage}\n\nAnswer with one of: False, True.",
        EXACT,
        rename={"solution": "answer"},
        system=TEXT,
    ),
    "translation": Shape(
        "Translate this text from en to de.\n\n{translation[en]}",
        UNWRITTEN,
        rename={"reference": "translation.de"},
        asks=WRITE,
    ),
    "topic_and_number": Shape(
        "TO DO: say what the model should do with this text.\n\n{topic}",
        UNWRITTEN,
        asks="should do with topic. The other columns are n_words.",
    ),
    "uuid_and_title": Shape(
        "TO DO: say what the model should do with this text.\n\n{title}",
        UNWRITTEN,
        asks="should do with title. The other columns are id, paragraphs.",
    ),
    "summaries": Shape(
        "TO DO: say what the model should do with this text.\n\n{document}",
        UNWRITTEN,
        rename={"reference": "summary"},
        asks="should do with document. The other columns are summary.",
    ),
    "countdown": Shape(
        "Use the numbers {nums}, each exactly once, with + - * / and parentheses, to make "
        "{target}.",
        "countdown",
        system="Think, then give the expression in <answer> tags.",
    ),
}


def test_every_file_has_an_expectation():
    assert {path.stem for path in SHAPES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_init_proposes_what_a_careful_person_would_or_asks(
    name, tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SHAPES / f"{name}.jsonl", "rows.jsonl")
    expected = EXPECTED[name]
    code = main(["init", "rows.jsonl", str(tiny_folder), "--yes"])
    printed = capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
    assert recipe.get("user_prompt", recipe.get("prompt_column")) == expected.prompt
    assert recipe["reward_funcs"] == [expected.reward]
    assert recipe.get("rename_columns") == expected.rename
    assert recipe.get("answer_column") == expected.answer_column
    assert recipe["system_prompt"] == expected.system
    assert (tmp_path / "mine" / "rewards.py").exists() == (expected.reward == UNWRITTEN)
    assert recipe["held_out_share"] == 0.2 and recipe["eval_strategy"] == "steps"
    findings = check_recipe("mine/recipe.yaml")
    if expected.asks:
        assert code == 1 and expected.asks in printed and "TO DO    " in printed
        assert not findings.sound
        return
    assert code == 0, printed
    assert "TO DO" not in printed and findings.sound
    for part in expected.first_prompt:
        assert part in findings.figures["prompts"]["first"]
    [scores] = findings.figures["rewards"]["scores"].values()
    if name not in ("ifeval", "mbpp", "code_inputs", "countdown"):
        assert scores[:2] == [0, 0]


OTHERS = [
    (
        lambda n: {"Body": f"Ann has {n} pens.", "Question": "How many?", "Answer": float(n)},
        ("{Question}\n\n{Body}", "number"),
    ),
    (
        lambda n: {
            "context": f"Text {n}.",
            "question": "Why?",
            "answers": ["a b", "c"],
            "label": 0,
        },
        ("{question}\n\n{context}\n{answers:letters}", "choice"),
    ),
    (
        lambda n: {"question": "Why?", "options": {"A": "x", "B": "rain"}, "answer": "rain"},
        ("{question}\n{options[A]}\n{options[B]}", "exact"),
    ),
    (
        lambda n: {"question": "Why?", "options": ["A)21", "B)22"], "correct": "AB"[n % 2]},
        ("{question}\n{options:lines}", "choice"),
    ),
    (
        lambda n: {"question": "Why?", "options": [{"key": "A", "value": "x"}] * 2, "answer": "A"},
        ("{question}\nA) {options[0][value]}\nB) {options[1][value]}", "choice"),
    ),
    (
        lambda n: {"goal": f"Open jar {n}.", "sol1": "twist it", "sol2": "burn it", "label": n % 2},
        ("{goal}\nA) {sol1}\nB) {sol2}", "choice"),
    ),
    (
        lambda n: {"question": "Sum?", "choices": [f"{n}", f"{n + 1}"], "answer": f"{n}"},
        ("{question}\n{choices:lines}", "number"),
    ),
    (lambda n: {"query": "Weather?", "answers": '[{"name": "w"}]'}, ("{query}", UNWRITTEN)),
    (lambda n: {"question": "Who?", "answer": "Apollo 11"}, ("{question}", "exact")),
    (
        lambda n: {"problem": "x?", "answer": ["7", "x^2", "no", "1/2"][n % 4]},
        ("{problem}", "accuracy"),
    ),
    (
        lambda n: {"instruction": f"Do {n}.", "input": "", "output": "7"},
        ("{instruction}", "number"),
    ),
]


@pytest.mark.parametrize(("row", "expected"), OTHERS)
def test_proposals_for_other_shapes(row, expected):
    proposal = propose([row(n) for n in range(12)])
    assert (proposal.prompt, proposal.reward) == expected and not proposal.questions


def test_where_the_first_option_has_no_known_number_it_asks():
    rows = [{"question": f"{n}?", "choices": ["a", "b", "c"], "answer": 1} for n in range(12)]
    proposal = propose(rows)
    assert "Is the first option number 0 or 1 in answer?" in proposal.questions[0]


def test_pairs_of_whole_dialogues_are_refused():
    rows = [{"chosen": "Human: hi\n\nAssistant: hello", "rejected": "Human: hi\n\nAssistant: no"}]
    with pytest.raises(ValueError, match="contain the question together with an answer"):
        propose(rows)


def test_rows_without_tests_show_no_test():
    rows = [{"text": f"Add {n}.", "tests": [f"assert f(1) == {n}"]} for n in range(30)]
    assert "{tests[0]}" in propose(rows).prompt
    rows[3]["tests"] = []
    proposal = propose(rows)
    assert (proposal.prompt, proposal.reward) == ("{text}", "code")


def test_braces_of_classes_stay_in_the_prompt():
    rows = [{"text": f"It is {n}.", "label": ("{pos}", "{neg}")[n % 2]} for n in range(12)]
    proposal = propose(rows)
    assert fill(proposal.prompt, rows[1]) == "It is 1.\n\nAnswer with one of: {neg}, {pos}."


@pytest.mark.parametrize("name", ["my.text", "a[b", "a:b", "a!r", "{a", "a}", "", "0"])
def test_a_column_that_a_template_cannot_contain_is_not_in_the_prompt(name):
    rows = [{name: f"One word {n}", "title": f"Title of {n} words"} for n in range(12)]
    proposal = propose(rows)
    assert fill(proposal.prompt, rows[2]).endswith("\n\nTitle of 2 words")
    with pytest.raises(ValueError, match="its name must not be a number or contain"):
        propose([{name: row[name]} for row in rows])


@pytest.mark.parametrize("key", ["a]b", "1", "{", ""])
def test_options_by_keys_that_a_template_cannot_contain_are_asked_for(key):
    rows = [
        {"question": "Why?", "options": {key: "x", "B": f"rain {n}"}, "answer": "B"}
        for n in range(12)
    ]
    proposal = propose(rows)
    assert fill(proposal.prompt, rows[0]) == "Why?"
    assert "Where are the options" in proposal.questions[0]
