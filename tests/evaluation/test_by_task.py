"""The figures of an evaluation by task are those of the task's rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grpo_ext.evaluation.by_task import compare_by_task, figures_of, parts_of_tasks
from grpo_ext.evaluation.score import Sample

ROWS = [{"task": "math"}, {"task": "code"}, {"task": "math"}, {"task": "code"}, {"task": "math"}]
NAMES = ["math", "code", "format"]


def sample(row: int, score: float, form: float) -> Sample:
    own = ROWS[row]["task"]
    return Sample(row, "x", {"math": None, "code": None, own: score, "format": form}, 10 * row)


def two_each(scores):
    return [sample(row, s, 0.5) for row, pair in enumerate(scores) for s in pair]


SAMPLES = two_each([(1, 0), (0, 0), (1, 1), (1, 0), (0, 0)])


def test_each_task_has_the_figures_of_its_rows_alone():
    figures = figures_of(ROWS, SAMPLES, NAMES, ["math", "code", "format"], 2)
    assert figures["pass@1"] == pytest.approx(4 / 10)  # each row by the reward of its task
    assert figures["tasks/math/pass@1"] == pytest.approx(3 / 6)
    assert figures["tasks/code/pass@1"] == pytest.approx(1 / 4)
    for task, rows in (("math", [0, 2, 4]), ("code", [1, 3])):
        numbers = {row: number for number, row in enumerate(rows)}
        own = [replace(s, row=numbers[s.row]) for s in SAMPLES if s.row in numbers]
        alone = figures_of([{}] * len(rows), own, [task, "format"], [task, "format"], 2)
        by_task = {
            key.removeprefix(f"tasks/{task}/"): value
            for key, value in figures.items()
            if key.startswith(f"tasks/{task}/")
        }
        assert by_task == pytest.approx(alone, nan_ok=True)


def test_a_task_that_nothing_scores_has_no_pass_rate_of_another():
    samples = [*SAMPLES[:2], *(replace(s, rewards=dict.fromkeys(NAMES)) for s in SAMPLES[2:4])]
    figures = figures_of(ROWS, samples, NAMES, ["math", "code"], 2)
    assert "tasks/code/format" not in figures and figures["tasks/math/math"] == 0.5


def test_differences_by_task():
    after = two_each([(1, 1), (0, 0), (1, 1), (1, 1), (0, 1)])
    found = compare_by_task(ROWS, {"greedy": SAMPLES}, {"greedy": after}, NAMES, ["math", "code"])
    assert found["greedy"]["tasks/math/math"]["mean"] == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert found["greedy"]["tasks/code/code"]["mean"] == pytest.approx((0 + 0.5) / 2)
    assert "tasks/code/math" not in found["greedy"]
    assert found["greedy"]["tasks/code/format"]["rows"] == 2


def test_parts_of_tasks():
    math, code = sorted(parts_of_tasks(ROWS, SAMPLES, NAMES), key=lambda part: part.outcome)[::-1]
    assert (math.outcome, len(math.rows), len(math.samples)) == ("math", 3, 6)
    assert (code.prefix, code.outcome) == ("tasks/code/", "code")
    [whole] = parts_of_tasks([{}] * 5, SAMPLES, NAMES)
    assert (whole.prefix, whole.outcome, len(whole.rows)) == ("", "math", 5)
