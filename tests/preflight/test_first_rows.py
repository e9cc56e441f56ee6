"""The rows that `check` shows are those that the run uses."""

from __future__ import annotations

import json

import pytest

from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.first_rows import first_rows
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.run.from_recipe import train_rows

# A task whose data is interrupted behind its first rows.
INTERRUPTED = """
from dataclasses import dataclass

from grpo_ext.tasks import Task


@dataclass
class Interrupted(Task):
    name = "interrupted"

    def keep(self, row):
        if row["number"] >= 50:
            raise OSError("the disk is gone")
        return True

    def prompt(self, row):
        return row["text"]
"""


@pytest.fixture
def drawn(tmp_path):
    """The values of a recipe that draws 8 of 100 rows."""
    rows = [json.dumps({"text": f"Row {number}.", "number": number}) for number in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    return {
        "model_name_or_path": "m",
        "output_dir": str(tmp_path / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "task": "prompts",
        "user_prompt": "{text}",
        "dataset_name": str(tmp_path / "rows.jsonl"),
        "max_train_samples": 8,
        "random_train_samples": True,
        "reward_funcs": ["format"],
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
    }


def test_rows_that_the_run_draws_are_shown(drawn, tiny_folder):
    recipe = load_recipe(None, drawn)
    findings = Findings()
    rows = first_rows(recipe, 5, findings)
    assert rows == list(train_rows(recipe))[:5]
    assert [row["number"] for row in rows] != [0, 1, 2, 3, 4]
    assert not findings.problems and not findings.notes
    checked = check_recipe(None, {**drawn, "model_name_or_path": str(tiny_folder)})
    assert rows[0]["text"] in checked.figures["prompts"]["first"]


def test_rows_that_cannot_be_drawn_here_are_replaced_by_the_first_ones(drawn, tmp_path):
    del drawn["user_prompt"]
    recipe = load_recipe(None, {**drawn, "task": f"{tmp_path}/interrupted.py:Interrupted"})
    findings = Findings(elsewhere=True)
    rows = first_rows(recipe, 3, findings)
    assert [row["number"] for row in rows] == [0, 1, 2]
    [note] = findings.notes
    assert note.key == "random_train_samples" and not findings.problems
    assert "the first rows of the data were checked" in note.message


@pytest.mark.parametrize(
    ("faulty", "line", "key", "column", "suggested"),
    [
        ("user_prompt: '{qestion}'", 3, "user_prompt", "qestion", "question"),
        ("user_prompt: '{question}{soluton}'", 3, "user_prompt", "soluton", "solution"),
        ("rename_columns: {solution: anwser}", 4, "rename_columns", "anwser", "answer"),
        ("prompt_column: qustion", 3, "prompt_column", "qustion", "question"),
    ],
)
def test_a_column_that_the_data_lacks_is_one_problem_at_the_key_that_names_it(
    faulty, line, key, column, suggested, tmp_path, tiny_folder
):
    file = tmp_path / "rows.jsonl"
    rows = [json.dumps({"question": f"Say {n}.", "answer": str(n)}) for n in range(40)]
    file.write_text("\n".join(rows))
    lines = [
        f"model_name_or_path: {tiny_folder}",
        "task: prompts",
        "user_prompt: '{question}'",
        "rename_columns: {solution: answer}",
        f"dataset_name: {file}",
        "held_out_share: 0.2",
        "eval_strategy: steps",
        "eval_steps: 5",
        "reward_funcs: [accuracy]",
        f"output_dir: {tmp_path / 'run'}",
        "use_cpu: true",
        "report_to: none",
        "per_device_train_batch_size: 8",
        "max_completion_length: 8",
    ]
    lines[line - 1] = faulty
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("\n".join(lines) + "\n")
    [problem] = check_recipe(recipe).problems
    assert (problem.key, problem.place) == (key, f"{recipe}:{line}")
    assert f"column {column!r}, which the data lacks. Did you mean {suggested!r}?" in str(problem)
    assert "The data has the columns answer, question. " in str(problem)
