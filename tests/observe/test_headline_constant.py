"""The headline of the report beside a constant answer, on the figures that the page has."""

from __future__ import annotations

import pytest

from grpo_ext.observe.changes import changes
from grpo_ext.observe.read_run import RunData
from grpo_ext.observe.report.page import logged


def constant_of(tmp_path, metrics):
    """What the page has of a constant answer, from lines of `metrics.jsonl`."""
    [change] = changes(RunData("run", tmp_path, metrics))
    return change["constant"]


@pytest.mark.parametrize(
    ("last", "error", "beaten"),
    [(0.561, 0.02, False), (0.60, 0.02, False), (0.70, 0.02, True), (0.571, None, False)],
)
def test_a_model_beats_the_last_constant_beyond_the_errors(tmp_path, last, error, beaten):
    lines = [
        {"step": 0, "eval_words": 0.3, "eval_words_se": 0.02, "eval_words_constant": 0.1},
        {
            "step": 9,
            "eval_words": last,
            "eval_words_se": error,
            "eval_words_constant": 0.572,
            "eval_words_constant_se": 0.03,
        },
    ]
    assert constant_of(tmp_path, lines) == {"value": 0.572, "error": 0.03, "beaten": beaten}


def test_evaluations_by_trl_have_another_name(tmp_path):
    lines = [{"step": 9, "eval_rewards/words/mean": 0.5, "eval_rewards/words/constant": 0.4}]
    assert constant_of(tmp_path, lines) == {"value": 0.4, "error": None, "beaten": True}


def test_without_the_figure_nothing_is_said(tmp_path):
    lines = [{"step": 9, "eval_words": 0.5}]
    assert constant_of(tmp_path, lines) is None


def test_the_figure_is_no_curve_of_the_held_out_rewards(tmp_path):
    lines = [
        {"step": step, "eval_words": 0.5, "eval_words_constant": 0.4, "eval_words_constant_se": 0.1}
        for step in (0, 9)
    ]
    panels = logged(RunData("run", tmp_path, lines))["panels"]
    assert [[series["label"] for series in panel["series"]] for panel in panels] == [["words"]]
