"""A pretrained model has the figures of the lm-evaluation-harness's own command line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_ext.cli.main import main
from tests.support.local_suite import assert_as_theirs, run_command_line, write_tasks

CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Italy": "Rome",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Nepal": "Kathmandu",
    "Ghana": "Accra",
    "Qatar": "Doha",
    "Syria": "Damascus",
    "Chile": "Santiago",
    "Poland": "Warsaw",
}
LIMIT = 12


def rows_of(path: Path, count: int) -> list[dict]:
    lines = path.read_text(encoding="utf-8").splitlines()[:count]
    return [json.loads(line) for line in lines]


def choices() -> list[dict]:
    """A question for each capital, with those of the next countries as the other choices."""
    cities = list(CAPITALS.values())
    rows = []
    for i, country in enumerate(CAPITALS):
        offered = sorted(cities[(i + k) % len(cities)] for k in range(4))
        question = f"What is the capital of {country}?"
        rows.append({"question": question, "choices": offered, "answer": offered.index(cities[i])})
    return rows


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval comes with `make suite`")
def test_real_problems_and_choices_are_scored_as_by_the_command_line(
    smollm2, shared_data, tmp_path
):
    train = rows_of(shared_data / "gsm8k_train.jsonl", 8)
    test = rows_of(shared_data / "gsm8k_test.jsonl", LIMIT)
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    write_tasks(tasks, train, test, choices(), max_new_tokens=96)
    output = tmp_path / "suite.json"
    words = ["--suite", "local_sums,local_choices", "--suite_tasks", str(tasks)]
    words += ["--suite_limit", str(LIMIT), "--batch_size", "6", "--output", str(output)]
    assert main(["eval", *words, "--model", str(smollm2)]) == 0
    run_command_line(smollm2, tasks, tmp_path / "theirs", limit=LIMIT, batch_size=6)
    assert_as_theirs(output, str(smollm2), tmp_path / "theirs")
    figures = json.loads(output.read_text())["models"][str(smollm2)]
    assert figures["local_choices"]["acc"] > 0.5
