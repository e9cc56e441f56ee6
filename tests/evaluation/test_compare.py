"""Differences between two models.

Intervals that cover the truth, pairs, problems that changed, a page nobody can break.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest

from grpo_ext.cli.main import main
from grpo_ext.evaluation.compare import compare, paired_difference
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.score import (
    Sample,
    over_rows,
    row_means,
    score_completions,
)
from grpo_ext.evaluation.table import cell, table
from grpo_ext.rewards import build
from tests.support.logs import json_rows


def scripted(rates, rng, count, rows, countdown):
    """Completions of a policy that solves row i with probability rates[i], judged by the real
    reward.
    """

    def write(i):
        a, b = rows[i]["nums"]
        return (
            f"<answer>{a} + {b}</answer>"
            if rng.random() < rates[i]
            else f"<answer>{a} - {b}</answer>"
        )

    completions = [[Completion(write(i), [1]) for _ in range(count)] for i in range(len(rows))]
    return score_completions(rows, completions, {"countdown": countdown})


def test_intervals_cover_the_truth_of_a_scripted_policy():
    """Rows differ in how hard they are, and the better policy solves each a little more often.

    The truth is known.
    """
    rng = random.Random(0)
    countdown = build("countdown")
    gain = 0.12
    count = 4
    trials = 300
    in_difference = in_accuracy = 0
    for _ in range(trials):
        rows = [
            {"prompt": "?", "nums": [a, b], "target": a + b}
            for a, b in itertools.product(range(1, 11), range(1, 9))
        ]
        hard = [rng.random() * 0.8 for _ in rows]  # mean 0.4
        before = scripted(hard, rng, count, rows, countdown)
        after = scripted([rate + gain for rate in hard], rng, count, rows, countdown)
        difference = paired_difference(before, after, "countdown")
        in_difference += difference["low"] <= gain <= difference["high"]
        accuracy = over_rows(after, row_means(after, "countdown"))
        in_accuracy += accuracy.low <= 0.4 + gain <= accuracy.high
    assert 0.91 <= in_difference / trials <= 0.98
    assert 0.91 <= in_accuracy / trials <= 0.98


def test_pairing_makes_a_small_gain_visible():
    rows = [Sample(i, "", {"countdown": i / 50}, 1) for i in range(50)]
    better = [Sample(i, "", {"countdown": i / 50 + 0.01}, 1) for i in range(50)]
    difference = paired_difference(rows, better, "countdown")
    assert difference["low"] == pytest.approx(0.01) == difference["high"]
    assert difference["rows"] == 50


def test_rows_without_a_score_are_left_out():
    before = [Sample(0, "", {"countdown": None}, 1), Sample(1, "", {"countdown": 0.0}, 1)]
    after = [Sample(0, "", {"countdown": 1.0}, 1), Sample(1, "", {"countdown": 1.0}, 1)]
    assert paired_difference(before, after, "countdown")["rows"] == 1
    assert paired_difference(before[:1], after[:1], "countdown") is None


def test_changed_rows_are_named():
    before = [Sample(i, "", {"countdown": r}, 1) for i, r in enumerate([0.0, 1.0, 1.0, None])]
    after = [Sample(i, "", {"countdown": r}, 1) for i, r in enumerate([1.0, 0.0, 1.0, 1.0])]
    found = compare({"greedy": before}, {"greedy": after}, ["countdown"], ["countdown"])
    assert found["became_right"] == [0] and found["became_wrong"] == [1] and "sampled" not in found
    length = found["greedy"]["length"]
    assert (length["mean"], length["rows"], length["verdict"]) == (0.0, 4, "did not clearly change")
    assert length["low"] == -length["high"] < 0  # four equal pairs do not prove that all are equal


def test_nothing_that_a_model_writes_leaves_its_cell():
    nasty = "<script>alert(1)</script> | a | **b**\n# head\n[x](javascript:y) `c` \x1b[2J"
    shown = cell(nasty)
    assert "<script" not in shown and "\n" not in shown and "\x1b" not in shown
    assert shown.count("|") == shown.count("\\|") == 2
    [*_, line] = table(["row", "text"], [["0", nasty]])
    assert line.replace("\\|", "").count("|") == 3


RECIPE = """\
model_name_or_path: {model}
use_cpu: true
bf16: false
num_problems: 40
num_test_problems: 12
max_numbers: 3
max_number: 9
reward_funcs: [countdown, format]
max_completion_length: 8
"""


def test_two_models_are_compared(tiny_folder, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    other = tmp_path / "other"
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    for p in model.parameters():
        p.data.mul_(1.5)
    model.save_pretrained(other)
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(other)
    recipe = tmp_path / "recipe.yaml"
    output = tmp_path / "found" / "both.json"
    recipe.write_text(RECIPE.format(model=tiny_folder))
    words = ["eval", "--config", str(recipe), "--num_samples", "2", "--output", str(output)]
    assert main([*words, "--model", str(tiny_folder), "--model", str(other)]) == 0
    printed = capsys.readouterr().out
    assert "12 rows, mean" in printed and "became right" in printed
    found = json.loads(output.read_text())
    assert list(found["models"]) == [str(tiny_folder), str(other)]
    [comparison] = found["comparisons"]
    assert (
        comparison["against"] == str(tiny_folder) and comparison["greedy"]["format"]["rows"] == 12
    )
    for part in ("greedy", "sampled"):
        means = [found["models"][name][part]["length"] for name in found["models"]]
        assert comparison[part]["length"]["mean"] == pytest.approx(means[1] - means[0])
    assert "pass@2" in printed and "mixed@2" in printed
    rows = json_rows(output.with_name("both_completions.jsonl"))
    assert [sum(row["part"] == part for row in rows) for part in ("greedy", "sampled")] == [24, 48]
    assert main([*words, "--model", str(other), "--model", str(other)]) == 2
    assert "given more than once" in capsys.readouterr().err
    assert main([*words, "--model", str(other)]) == 0  # a single one: its summary, as before
    assert json.loads(output.read_text())["n"] == 12
