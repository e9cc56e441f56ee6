"""Tables of an evaluation on terminals of usual widths: names and figures stay on one line."""

from __future__ import annotations

import pytest

from grpo_ext.cli.eval import print_evaluation
from grpo_ext.evaluation.table import print_figures

NAMES = ("tasks/word_problems/accuracy", "tasks/word_problems/accuracy_constant", "pass@1")
MODELS = (
    "Qwen/Qwen2.5-0.5B-Instruct",
    "runs/countdown/grpo-2026-11-25/checkpoint-1200",
    "runs/[b]",
)


def summaries(models=MODELS):
    figures = {name: 0.25 for name in NAMES} | {f"{NAMES[0]}_se": 0.125}
    return {model: {"greedy": figures, "sampled": figures} for model in models}


@pytest.mark.parametrize("width", [80, 120, 200])
def test_names_and_figures_of_all_models_are_whole(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    print_figures(summaries(), 64)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    for name in NAMES:
        of_name = [line for line in lines if f" {name} " in line]
        shown = sum(line.count("0.250") for line in of_name)
        assert shown == 2 * len(MODELS)  # greedy and sampled
    assert sum(line.count("0.250 ± 0.125") for line in lines) == 2 * len(MODELS)
    assert any("runs/[b]" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_names_of_a_comparison_are_whole(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    difference = {"mean": 0.1, "low": -0.05, "high": 0.25, "verdict": "no clear difference"}
    comparison = {
        "model": MODELS[1],
        "against": MODELS[0],
        "greedy": dict.fromkeys(NAMES, difference),
    }
    evaluation = {
        "summaries": summaries(MODELS[:1]),
        "rows": [{}] * 64,
        "outcomes": [],
        "advice": {},
        "comparisons": [comparison],
    }
    print_evaluation(evaluation)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert all(sum(f" {name} " in line for line in lines) == 3 for name in NAMES)


def test_a_name_wider_than_the_terminal_is_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_figures(summaries(), 64)
    lines = capsys.readouterr().out.splitlines()
    assert all(sum(f" {name} " in line for line in lines) == 6 for name in NAMES)
