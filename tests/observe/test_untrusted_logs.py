"""A run's folder is untrusted.

Whatever lies in it, the report is written, and says what it left out.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState, TrainingArguments

from grpo_ext.cli.main import main
from grpo_ext.observe.jsonl import JsonLines, read
from grpo_ext.observe.read_run import read_run
from grpo_ext.observe.report.columns import Explainer, sample_texts
from grpo_ext.observe.report.page import build_page
from grpo_ext.observe.run_log import RunLog
from tests.support.logs import write_json_rows
from tests.support.report_pages import Page, sample, write_run

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
DEEP = "[" * 200_000
HUGE = "9" * 400


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "null",
        "7",
        "",
        DEEP,
        '{"step": 2}',
        '{"step": "2"}',
        '{"a": ' * 900 + "1" + "}" * 900,
        json.dumps({k: v for k, v in sample(2, "x").items() if k != "text"}),
        json.dumps({**sample(2, "x"), "rewards": [1]}),
        json.dumps({**sample(2, "x"), "rewards": {"countdown": "1"}}),
        json.dumps({**sample(2, "x"), "prompt_id": None}),
    ],
)
def test_a_bad_line_is_skipped_counted_and_told(tmp_path, capsys, line):
    folder = write_run(tmp_path, [sample(1, "good")])
    with (folder / "samples.jsonl").open("a") as file:
        file.write(line + "\n" + json.dumps(sample(3, "good, too")) + "\n")
    assert main(["report", str(folder)]) == 0
    told = capsys.readouterr()
    assert "2 completions" in told.out
    assert "Warning: 1 line was skipped: line 2 of" in told.err and "samples.jsonl" in told.err
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert (
        page.block("index-0")["step"] == [1, 3]
        and "line 2" in page.block("runs")["runs"][0]["faults"][0]
    )


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(sample(1, "x"))),
    ANYTHING,
    st.dictionaries(st.text(max_size=9), ANYTHING, max_size=3),
    st.data(),
)
def test_no_value_of_any_field_stops_the_report(tmp_path_factory, name, value, more, data):
    folder = tmp_path_factory.mktemp("run")
    odd = data.draw(
        st.sampled_from(["alarm", "not_finite", "reward", "eval_x", "time", "rewards/a/mean"])
    )
    rows = [sample(1, "a"), {**sample(2, "b"), name: value}, sample(3, "c")]
    write_json_rows(folder / "samples.jsonl", rows)
    metrics = [
        {"step": 1, "reward": 1.0},
        {"step": 2, odd: value, **more},
        {"step": 3, "reward": 1.0},
    ]
    write_json_rows(folder / "metrics.jsonl", metrics)
    (folder / "run.json").write_text(
        json.dumps({"rewards": value, "starts": value, "pass_threshold": value, **more})
    )
    (folder / "recipe.yaml").write_text(json.dumps({"pass_threshold": value, **more}))
    page = Page(build_page([read_run(folder)]))
    assert {1, 3} <= set(page.block("index-0")["step"])


@pytest.mark.parametrize("columns", [True, 3, "target", ["target"]])
def test_columns_that_are_no_mapping_stop_no_report(tmp_path, columns):
    folder = write_run(tmp_path, [{**sample(1, "x"), "columns": columns}])
    run = read_run(folder)
    [[text, said, *_]] = sample_texts(run.samples, Explainer(run.rewards))
    assert text == "x" and said == {}


@pytest.mark.parametrize("number", [HUGE, f"-{HUGE}", "1e999", "NaN", "-Infinity", "1e200"])
def test_numbers_beyond_all_bounds_are_gaps(tmp_path, number):
    folder = write_run(tmp_path, [sample(1, "x")])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 2, "reward": {number}, "kl": 0.5}}\n')
    with (folder / "samples.jsonl").open("a") as file:
        file.write(
            json.dumps(sample(2, "y")).replace('"reward": 0.0', f'"reward": {number}') + "\n"
        )
    run = read_run(folder)
    assert run.metrics[-1]["reward"] is None and run.metrics[-1]["kl"] == 0.5
    assert run.samples[-1]["reward"] is None and run.curves["reward"].values == [0.0, None]
    build_page([run])


@pytest.mark.parametrize(
    "name, text",
    [
        ("recipe.yaml", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"),
        ("recipe.yaml", "a: &a {x: 1}\nb: {<<: [*a, *a]}"),
        ("recipe.yaml", "!!python/object/apply:os.system ['touch {marker}']"),
        ("recipe.yaml", "a: [\n"),
        ("recipe.yaml", "a: !!bool right"),
        ("recipe.yaml", "a: !!int ''"),
        ("recipe.yaml", "a: !!timestamp today"),
        ("recipe.yaml", "a: \x07"),
        ("recipe.yaml", "[" * 2000),
        ("run.json", "{"),
        ("run.json", DEEP),
        ("run.json", "\udcff"),
    ],
)
def test_a_recipe_or_about_that_cannot_be_read_is_left_out_and_told(tmp_path, name, text):
    folder = write_run(tmp_path, [sample(1, "x")])
    (folder / name).write_text(
        text.replace("{marker}", str(tmp_path / "marker")), errors="surrogateescape"
    )
    run = read_run(folder)
    [fault] = run.faults
    assert name in fault and "cannot be read" in fault and "\n" not in fault
    assert run.recipe == {} and not (tmp_path / "marker").exists()
    build_page([run])


@pytest.mark.parametrize(
    "text, reason",
    [
        (
            "lr: 1\na: [\n",
            (
                "line 3: while parsing a flow node, expected the node content, "
                "but found '<stream end>'"
            ),
        ),
        ("a: \x07", "line 1: special characters are not allowed"),
        ("a: !!bool right", "line 1: a value does not fit its YAML type"),
    ],
)
def test_why_a_recipe_cannot_be_read_is_said_without_its_text(tmp_path, text, reason):
    folder = write_run(tmp_path, [sample(1, "x")])
    (folder / "recipe.yaml").write_text(text)
    assert read_run(folder).faults == [f"{folder / 'recipe.yaml'} cannot be read ({reason})."]


def test_what_a_run_says_of_itself_is_read(tmp_path):
    folder = write_run(tmp_path, [sample(1, "x", rewards={"a": 1.0, "b": 0.5})])
    rewards = [
        {"name": "a", "weight": 1.0},
        {"name": "b", "weight": 0.5, "reward": "brief", "options": {"n": 2}},
    ]
    (folder / "run.json").write_text(
        json.dumps({"rewards": rewards, "outcome": "b", "pass_threshold": 0.5})
    )
    run = read_run(folder)
    assert run.faults == [] and run.rewards == rewards and run.about["outcome"] == "b"
    page = Page(build_page([run])).block("runs")["runs"][0]
    assert page["rewards"] == rewards and page["about"]["pass_threshold"] == 0.5
    (folder / "recipe.yaml").write_text("pass_threshold: 0.75")
    assert read_run(folder).recipe == {"pass_threshold": 0.75}
    (folder / "run.json").write_text(json.dumps({"rewards": [*rewards, 3, {}], "outcome": "c"}))
    assert read_run(folder).rewards == rewards


def logged(folder, logs, whole=None):
    """What a run log writes of `logs`, where the trainer has kept `whole`."""
    args = TrainingArguments(str(folder), use_cpu=True)
    control = TrainerControl()
    state = TrainerState(global_step=3, max_steps=9, log_history=[{**(whole or logs), "step": 3}])
    log = RunLog()
    log.on_train_begin(args, state, control)
    log.on_log(args, state, control, logs)
    [row] = read(folder / "metrics.jsonl")
    return row


def test_a_figure_that_a_reward_calls_step_moves_no_line(tmp_path):
    """A resume cuts the log by the step of its lines."""
    row = logged(tmp_path, {"loss": 1.0, "step": 7.0, "time": 0.5, "not_finite": 1.0})
    assert row["step"] == 3 and row["logged/step"] == 7.0
    assert row["time"] > 1e9 and row["logged/time"] == 0.5 and row["logged/not_finite"] == 1.0
    written = (tmp_path / "metrics.jsonl").read_bytes()
    JsonLines(tmp_path / "metrics.jsonl").cut(3)
    assert (tmp_path / "metrics.jsonl").read_bytes() == written


def test_a_figure_that_another_callback_took_out_of_a_log_is_written(tmp_path):
    """transformers' own printer takes `total_flos` out of the mapping that all callbacks share."""
    row = logged(tmp_path, {"loss": 1.0}, whole={"loss": 1.0, "total_flos": 5.0})
    assert row["total_flos"] == 5.0 and "logged/step" not in row


@pytest.mark.parametrize("text", ["[]", "{", '{"starts": 3}', '{"starts": null}', DEEP, "7"])
def test_nor_does_a_bad_run_json_or_a_folder_of_anybodys(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    for name in ("earlier-mine3", "earlier-1", "earlier-²"):
        (tmp_path / name).mkdir()
    log = RunLog()
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    log.on_train_begin(args, TrainerState(global_step=3, max_steps=9), TrainerControl())
    assert [
        start["step"] for start in json.loads((tmp_path / "run.json").read_text())["starts"]
    ] == [3]
    log.note(3, {"loss": 1.0})
    RunLog().on_train_begin(args, TrainerState(global_step=0, max_steps=9), TrainerControl())
    assert len(list(read(tmp_path / "earlier-2" / "metrics.jsonl"))) == 1


def test_a_bad_line_in_its_own_log_does_not_keep_a_run_from_going_on(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2,}\n{"step": 3}\n')
    log = RunLog()
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    with caplog.at_level("WARNING"):
        log.on_train_begin(args, TrainerState(global_step=3, max_steps=9), TrainerControl())
    assert "line 2" in caplog.text and path.read_bytes().count(b"\n") == 3


def test_of_a_log_of_blank_lines_the_rest_is_left_out(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"step": 1}\n' + b"\n" * 50_000 + b'{"step": 2}\n')
    faults: list[str] = []
    assert [row["step"] for row in read(path, faults=faults)] == [1]
    assert "left out after line 10002" in faults[0]
    assert "more than 10,000 of its lines are not valid rows" in faults[0]
