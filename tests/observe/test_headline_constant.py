"""The headline of the report beside a constant answer: its script runs in Node, on the figures that the page has."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from conftest import REPO

from grpo_ext.observe.read_run import RunData
from grpo_ext.observe.report.page import logged

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
HEADLINE = REPO / "grpo_ext/observe/report/data/headline.js"
PROGRAM = """
const vm = require("vm");
const { script, facts, label, last } = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const known = new Map(facts.map((series) => [series.label, series]));
const run = { fact: (name) => known.get(name) };
const found = vm.runInNewContext(script + "\\nconstantOf", {})(run, { label }, last);
console.log(JSON.stringify(found));
"""


def constant_of(tmp_path, metrics, label, last):
    """What the headline says of a constant answer, from lines of `metrics.jsonl`."""
    facts = logged(RunData("run", tmp_path, metrics))["facts"]
    script = HEADLINE.read_text(encoding="utf-8")
    given = {"script": script, "facts": facts, "label": label, "last": last}
    out = subprocess.run(
        ["node", "-e", PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.stdout)


@pytest.mark.parametrize(
    ("last", "beaten"),
    [
        ({"value": 0.561, "error": 0.02}, False),
        ({"value": 0.60, "error": 0.02}, False),
        ({"value": 0.70, "error": 0.02}, True),
        ({"value": 0.573, "error": None}, False),
    ],
)
def test_a_model_beats_the_last_constant_by_twice_the_error(tmp_path, last, beaten):
    lines = [
        {"step": 0, "eval_words": 0.3, "eval_words_constant": 0.1},
        {
            "step": 9,
            "eval_words": 0.5,
            "eval_words_constant": 0.572,
            "eval_words_constant_se": 0.03,
        },
    ]
    found = constant_of(tmp_path, lines, "words", last)
    assert found == {"value": 0.572, "error": 0.03, "beaten": beaten}


def test_evaluations_by_trl_have_another_name(tmp_path):
    lines = [{"step": 9, "eval_rewards/words/mean": 0.5, "eval_rewards/words/constant": 0.4}]
    found = constant_of(tmp_path, lines, "rewards/words/mean", {"value": 0.5, "error": None})
    assert found == {"value": 0.4, "error": 0, "beaten": True}


def test_without_the_figure_nothing_is_said(tmp_path):
    lines = [{"step": 9, "eval_words": 0.5}]
    assert constant_of(tmp_path, lines, "words", {"value": 0.5, "error": None}) is None


def test_the_figure_is_no_curve_of_the_held_out_rewards(tmp_path):
    lines = [
        {"step": step, "eval_words": 0.5, "eval_words_constant": 0.4, "eval_words_constant_se": 0.1}
        for step in (0, 9)
    ]
    panels = logged(RunData("run", tmp_path, lines))["panels"]
    assert [[series["label"] for series in panel["series"]] for panel in panels] == [["words"]]
