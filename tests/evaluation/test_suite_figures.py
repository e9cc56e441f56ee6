"""Figures of the harness: by task, compared document by document, shown and saved."""

from __future__ import annotations

import json

import pytest

from grpo_ext.cli.eval import print_suite
from grpo_ext.common.estimates import mean_difference
from grpo_ext.evaluation.suite_figures import (
    compare_results,
    evaluation_of,
    figures_by_task,
    save_suite,
    without_parts,
)

BEFORE = {"easy": [1.0, 0.0, 1.0, 0.0], "hard": [0.0, 0.0]}
AFTER = {"easy": [1.0, 1.0, 1.0, 0.0], "hard": [0.0, 1.0]}


def results_of(scores, hashes=None):
    """What the harness returns for two tasks and their group, with a metric that is no mean."""
    samples = {}
    metrics = {}
    for task, values in scores.items():
        samples[task] = [
            {
                "doc_id": i,
                "doc_hash": (hashes or {}).get((task, i), f"{task}{i}"),
                "arguments": [(f"prompt {i}", {"until": []})],
                "target": "2",
                "resps": [["a"]],
                "filtered_resps": ["a"],
                "filter": "strict-match",
                "metrics": ["exact_match", "levels", "perplexity"],
                "exact_match": value,
                "levels": [True, False],
                "perplexity": value + 1.0,
            }
            for i, value in enumerate(values)
        ]
        metrics[task] = {
            "alias": task,
            "name": task,
            "sample_len": len(values),
            "exact_match,strict-match": sum(values) / len(values),
            "exact_match_stderr,strict-match": 0.25,
            "perplexity,strict-match": 7.0,
            "perplexity_stderr,strict-match": "N/A",
        }
    everything = [value for values in scores.values() for value in values]
    metrics["both"] = {
        "alias": "both",
        "sample_len": len(everything),
        "exact_match,strict-match": sum(everything) / len(everything),
        "exact_match_stderr,strict-match": 0.2,
    }
    metrics["unscored"] = {"alias": "unscored", "sample_len": 0}
    return {
        "results": metrics,
        "samples": samples,
        "group_subtasks": {"both": list(scores), "unscored": []},
    }


def test_figures_have_counts_filters_and_the_errors_that_are_known():
    figures = figures_by_task(results_of(BEFORE))
    assert set(figures) == {"easy", "hard", "both"}
    assert figures["easy"] == {
        "n": 4,
        "exact_match (strict-match)": 0.5,
        "exact_match (strict-match)_se": 0.25,
        "perplexity (strict-match)": 7.0,
    }
    assert list(without_parts(figures, results_of(BEFORE)["group_subtasks"])) == ["both"]


def test_a_group_is_compared_over_the_documents_of_its_tasks():
    [(name, metrics)] = compare_results(results_of(BEFORE), results_of(AFTER)).items()
    assert name == "both" and list(metrics) == ["exact_match (strict-match)"]
    found = metrics["exact_match (strict-match)"]
    expected = mean_difference([*BEFORE["easy"], *BEFORE["hard"]], [*AFTER["easy"], *AFTER["hard"]])
    assert found["mean"] == pytest.approx(2 / 6)
    assert (found["low"], found["high"]) == (expected.low, expected.high)
    assert (found["rows"], found["problems"]) == (6, 6)


def test_equal_documents_are_one_problem():
    same = {("easy", 0): "x", ("easy", 1): "x"}
    differences = compare_results(results_of(BEFORE, same), results_of(AFTER, same))
    assert differences["both"]["exact_match (strict-match)"]["problems"] == 5


def test_a_group_that_weighs_tasks_equally_has_no_paired_difference():
    after = results_of(AFTER)
    after["results"]["both"]["exact_match,strict-match"] = (0.75 + 0.5) / 2
    assert compare_results(results_of(BEFORE), after) == {"both": {}}


def first_with_template(results):
    """The evaluation, where only the first model has a chat template."""
    has_template = dict.fromkeys(results, False) | {next(iter(results)): True}
    return evaluation_of(results, {"chat_template": has_template})


def test_one_table_shows_models_side_by_side_and_names_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    odd = {"[red]\x1b[2J": BEFORE["easy"], "hard": BEFORE["hard"]}
    results = {"before": results_of(odd), "[b]after": results_of(odd)}
    for of_model in results.values():
        del of_model["results"]["both"]
    print_suite(first_with_template(results))
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if "red" in line and "± 0.250" in line]
    assert r"[red]\x1b[2J" in line and line.count("0.500 ± 0.250") == 2
    assert "\x1b" not in out and "[b]after against before: paired difference, 95 %" in out
    assert "[b]after has no chat template: its prompts were plain text." in out


def test_every_document_is_saved_with_its_scores(tmp_path):
    evaluation = first_with_template({"before": results_of(BEFORE), "after": results_of(AFTER)})
    figures, completions = save_suite(tmp_path / "new" / "suite.json", evaluation)
    saved = json.loads(figures.read_text())
    assert saved["models"]["after"]["easy"]["exact_match (strict-match)"] == 0.75
    assert saved["comparisons"][0]["against"] == "before"
    lines = [json.loads(line) for line in completions.read_text().splitlines()]
    assert completions.name == "suite_completions.jsonl" and len(lines) == 12
    assert lines[1]["prompt"] == "prompt 1" and lines[1]["exact_match"] == 0.0
