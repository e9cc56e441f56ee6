"""Public tasks in the report of a run, whose file is as untrusted as the rest of its folder."""

from __future__ import annotations

import json

import pytest

from grpo_ext.evaluation.suite_figures import save_suite
from grpo_ext.observe.read_run import read_run
from grpo_ext.observe.report.page import build_page
from grpo_ext.observe.suite_table import MOST_FIGURES, suite_table
from tests.support.report_pages import HOSTILE, Page, write_run

FOUND = {"mean": 0.25, "low": 0.1, "high": 0.4, "verdict": "rose", "rows": 8, "problems": 8}
EVALUATION = {
    "settings": {"shown": ["sums"]},
    "results": {},
    "figures": {
        "before": {"sums": {"n": 8, "acc": 0.5, "acc_se": 0.125}, "part": {"n": 8, "acc": 0.5}},
        "after": {"sums": {"n": 8, "acc": 0.75, "acc_se": 0.0625}, "part": {"n": 8, "acc": 0.75}},
    },
    "comparisons": [{"model": "after", "against": "before", "sums": {"acc": FOUND}}],
}


def written(folder, saved) -> dict:
    (folder / "suite.json").write_text(json.dumps(saved))
    return suite_table(folder, [])


def test_a_saved_evaluation_is_a_table_of_the_page(tmp_path):
    run = write_run(tmp_path / "run", [])
    save_suite(run / "suite.json", EVALUATION)
    [about] = Page(build_page([read_run(run)])).block("runs")["runs"]
    assert about["faults"] == [] and about["suite"]["models"] == ["before", "after"]
    assert about["suite"]["rows"] == [
        {
            "task": "sums",
            "metric": "n",
            "values": [[8, None], [8, None]],
            "differences": [None, None],
        },
        {
            "task": "sums",
            "metric": "acc",
            "values": [[0.5, 0.125], [0.75, 0.0625]],
            "differences": [
                None,
                {name: FOUND[name] for name in ("mean", "low", "high", "verdict")},
            ],
        },
    ]


def test_a_run_without_public_tasks_has_no_table(tmp_path):
    [about] = Page(build_page([read_run(write_run(tmp_path / "run", []))])).block("runs")["runs"]
    assert about["suite"] == {} and about["faults"] == []


@pytest.mark.parametrize(
    "saved",
    [
        [],
        {"models": 3},
        {"models": []},
        {"models": {"m": [1]}},
        {"models": {"m": {"t": 1}}, "settings": [], "comparisons": {"a": 1}},
        {"models": {"m": {"t": {}}}, "settings": {"shown": [[], {}]}, "comparisons": [3, {}]},
    ],
)
def test_other_shapes_give_no_rows(saved, tmp_path):
    assert written(tmp_path, saved).get("rows", []) == []


def test_values_of_other_types_are_left_out(tmp_path):
    metrics = {"a": "0.5", "b": None, "c": [1.0], "d": True, "e": 2, "e_se": "x"}
    odd = {"mean": "x", "verdict": "rose"}
    comparisons = [{"model": "m", "t": {"e": odd}}, {"model": ["m"], "t": 3}]
    table = written(tmp_path, {"models": {"m": {"t": metrics}}, "comparisons": comparisons})
    assert [row["values"] for row in table["rows"]] == [[[None, None]]] * 4 + [[[2, None]]]
    assert all(row["differences"] == [None] for row in table["rows"])


def test_too_many_figures_are_left_out_and_told(tmp_path):
    saved = {"models": {"m": {"t": {f"metric{i}": 0.5 for i in range(MOST_FIGURES + 9)}}}}
    (tmp_path / "suite.json").write_text(json.dumps(saved))
    faults: list[str] = []
    assert len(suite_table(tmp_path, faults)["rows"]) == MOST_FIGURES
    assert faults == [f"{tmp_path}/suite.json: figures beyond the first 500 are left out."]


def test_hostile_names_stay_data(tmp_path):
    run = write_run(tmp_path / "run", [])
    name = HOSTILE.replace("\ud800", "")
    saved = {"models": {name: {name: {name: 0.5}}}}
    (run / "suite.json").write_text(json.dumps(saved))
    page = Page(build_page([read_run(run)]))
    executed = [data for attrs, data in page.scripts if attrs.get("type") != "text/plain"]
    assert len(executed) == 1 and "document.title='owned'" not in executed[0]
    [row] = page.block("runs")["runs"][0]["suite"]["rows"]
    assert (row["task"], row["metric"]) == (name, name)


def test_a_link_out_of_the_folder_is_not_read(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"models": {"m": {"t": {"acc": 0.5}}}}))
    run = tmp_path / "run"
    run.mkdir()
    (run / "suite.json").symlink_to(tmp_path / "mine.json")
    faults: list[str] = []
    assert suite_table(run, faults) == {} and len(faults) == 1
