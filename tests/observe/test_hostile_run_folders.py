"""A folder of runs in which somebody else put what they liked: the report and the live page show
the other runs, take little memory and time, never wait, and show nothing from outside of the
folder."""

from __future__ import annotations

import base64
import gzip
import json
import os
from pathlib import Path

import pytest

from grpo_ext.cli.main import main
from grpo_ext.common import foreign_files
from grpo_ext.common.files import checkpoints, write_atomically
from grpo_ext.common.foreign_files import (
    ForeignFile,
    entries,
    lines_of,
    open_plain,
    read_bytes,
    size_of,
)
from grpo_ext.common.untrusted import one_line
from grpo_ext.observe.jsonl import JsonLines, parts, read
from grpo_ext.observe.read_run import MOST_BYTES
from grpo_ext.observe.report.columns import TOO_LONG, Explainer
from grpo_ext.observe.run_folders import is_running, runs_in
from grpo_ext.observe.run_log import set_aside
from grpo_ext.rewards import list_rewards, register
from grpo_ext.rewards.explanation import Explanation
from tests.support.forked import Forked
from tests.support.hostile_folders import KINDS, SECRET, limit_this_process
from tests.support.report_pages import Page, sample, write_run
from tests.support.report_server import ask, served

NAMES = (
    "notes.md",
    "recipe.yaml",
    "run.json",
    "suite.json",
    "metrics.jsonl",
    "samples.jsonl",
    "samples-0001.jsonl",
    ".lock",
)


def private_folder(path: Path) -> Path:
    """A run of the reader's own, outside of the folder that somebody else has written."""
    write_run(path, [sample(1, SECRET)], [{"step": 1, "reward": 0.5, SECRET: 1.0}])
    (path / "samples-0001.jsonl").write_text(json.dumps(sample(1, SECRET)) + "\n")
    (path / "run.json").write_text(json.dumps({"rewards": [{"name": SECRET}], "starts": []}))
    (path / "suite.json").write_text(json.dumps({"models": {"m": {SECRET: {"acc": 1.0}}}}))
    (path / "recipe.yaml").write_text(f"system_prompt: {SECRET}\n")
    (path / "notes.md").write_text(SECRET)
    (path / ".lock").write_text(SECRET)
    return path


def content_of(page: Path) -> str:
    """Everything that a page holds, unpacked."""
    read = Page(page.read_text(encoding="utf-8"))
    packed = [data for attrs, data in read.scripts if attrs.get("type") == "text/plain"]
    return "".join(gzip.decompress(base64.b64decode(block)).decode() for block in packed)


def read_everything(runs: str) -> None:
    """Write the report of a folder's runs, and ask the live page for all of it, under limits."""
    limit_this_process()
    os.environ["OF_THE_READER"] = SECRET
    assert main(["report", runs]) == 0
    text = content_of(Path(runs) / "report.html")
    assert "text of the good run" in text
    assert SECRET not in text
    with served(Path(runs)) as server:
        status, _, body = ask(server, "/runs")
        assert status == 200
        names = [run["name"] for run in json.loads(body)]
        assert "good" in names
        for number, name in enumerate(names):
            for query in (
                "about/{}",
                "changes/{}",
                "metrics/{}?start=0&step=0",
                "samples/{}?start=0&step=0",
                "samples/{}?start=99&step=1",
                "texts/{}?start=0&stop=9999999",
            ):
                status, _, body = ask(server, "/" + query.format(number))
                assert status == 200 or name != "good"
                assert SECRET not in body.decode()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_file_of_a_run_stops_the_report_or_shows_what_is_outside(tmp_path, kind):
    private = private_folder(tmp_path / "private")
    runs = tmp_path / "runs"
    write_run(runs / "good", [sample(1, "text of the good run")])
    for name in NAMES:
        run = write_run(runs / f"with {name}", [sample(1, "text")])
        (run / name).unlink(missing_ok=True)
        kind(run / name, private)
    reader = Forked(read_everything, str(runs))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "\x1b" not in reader.printed


SLOW_OPTIONS = [
    ("countdown", {"tolerance": "1e-99999999"}),  # text: an exact number of 100 million digits
    ("countdown", {"tolerance": 1e100, "nums": "9" * 1000}),
    ("right_steps", {"part": "all", "min_steps": 10**4000}),
    ("poem_format", {"tones": ["modern"] * 1000, "lines": "水" * 1000}),
    ("poem_yun", {"rhyme_book": {"a": {}}}),
    ("relevance", {"model": "m" * 200_000, "part": "all"}),
    ("accuracy", {"solution": "x" * 200_000}),
]


@pytest.mark.parametrize(("reward", "options"), SLOW_OPTIONS, ids=str)
def test_options_of_a_foreign_run_make_no_explanation_slow(tmp_path, reward, options):
    columns = {"nums": [3, 4], "target": 7, "solution": "7", "lines": ["水作青龙盘石堤"] * 3}
    text = "text of the good run <answer>3 * 4</answer>"
    run = write_run(tmp_path / "good", [sample(step, text, columns=columns) for step in range(300)])
    entry = {"name": reward, "reward": reward, "options": options}
    (run / "run.json").write_text(json.dumps({"rewards": [entry]}))
    reader = Forked(read_everything, str(tmp_path))
    assert reader.wait() == 0, reader.printed[-3000:]


LONG_TEXTS = [
    "3 + 4 = 7, " * 9000,
    "<answer>" * 12_000,
    "<think>" * 5000 + "</think>" * 5000,
    "水" * 99_000,
    "水\n" * 45_000,
    "(" * 99_000,
    "1" * 99_000,
    "1=" * 45_000,
    "3-" * 45_000,
    "1,1" * 30_000,
    " " * 99_000,
]


def explain_all_completions(rows: list[dict]) -> None:
    limit_this_process()
    shipped = [entry.name for entry in list_rewards() if entry.explain is not None]
    assert len(shipped) >= 6
    explainer = Explainer([{"name": name} for name in shipped], faults := [])
    for row in rows:
        said, _ = explainer.explain(row)
        assert said
    assert faults == []


def test_explanations_take_time_in_proportion_to_the_text():
    """In all threads: the deadline works only in the main one, and is not reached here."""
    lists = {"nums": [1] * 20_000, "lines": ["水"] * 10_000, "target": 1e100}
    rows = [
        sample(1, text, columns={"solution": "7", "target": 7, "nums": [3], **columns})
        for text in LONG_TEXTS
        for columns in ({"lines": ["水作青龙盘石堤"] * 3}, lists)
    ]
    reader = Forked(explain_all_completions, rows)
    assert reader.wait() == 0, reader.printed[-3000:]


def explain_an_endless_completion(run: str) -> None:
    limit_this_process()

    @register("endless", explain=lambda completion: Explanation("why", iter(int, 1)))
    def endless(completions):
        return [0.0] * len(completions)

    def hang(completion):
        while True:
            pass

    @register("hanging", explain=hang)
    def hanging(completions):
        return [0.0] * len(completions)

    assert main(["report", run]) == 0


def test_an_explanation_without_an_end_is_given_up_and_named(tmp_path):
    run = write_run(tmp_path, [sample(step, "text of the good run") for step in range(200)])
    names = ["endless", "hanging"]
    (run / "run.json").write_text(json.dumps({"rewards": [{"name": name} for name in names]}))
    reader = Forked(explain_an_endless_completion, str(run))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "Warning: the reward hanging took more than" in reader.printed
    assert "text of the good run" in content_of(run / "report.html")


def test_long_completions_say_why_they_are_not_explained(tmp_path):
    row = sample(1, "x" * 100_001, columns={"solution": "7"})
    said, marks = Explainer([{"name": "accuracy"}]).explain(row)
    assert said == {"accuracy": TOO_LONG}
    assert marks == []


def test_a_small_folder_of_many_names_takes_little_memory(tmp_path):
    """A table with a column for each name and a row for each completion would take gigabytes."""
    names = [f"r{number}" for number in range(13_000)]
    rows = [sample(1, "text of the good run", rewards={name: 1.0}) for name in names]
    metrics = [{"step": step, f"eval_{name}": 1.0} for step, name in enumerate(names)]
    run = write_run(tmp_path / "good", rows, metrics)
    (run / "run.json").write_text(json.dumps({"rewards": [{"name": name} for name in names]}))
    assert (run / "run.json").stat().st_size < MOST_BYTES
    reader = Forked(read_everything, str(tmp_path))
    assert reader.wait() == 0, reader.printed[-3000:]
    assert "rewards beyond the first 50 are left out" in reader.printed
    assert "metrics beyond the first 5,000 are left out" in reader.printed


def test_links_to_runs_elsewhere_are_left_out_of_a_folder_of_runs(tmp_path):
    private = private_folder(tmp_path / "private")
    runs = tmp_path / "runs"
    good = write_run(runs / "good", [sample(1, "text of the good run")])
    (runs / "elsewhere").symlink_to(private)
    (runs / "inner").mkdir()
    (runs / "inner" / "grpo").symlink_to(private)
    (runs / "again").symlink_to("good")
    assert runs_in(runs) == [runs / "again", good]
    assert runs_in(runs / "elsewhere") == [runs / "elsewhere"]  # which the reader has named


def test_links_within_a_run_are_followed(tmp_path):
    run = write_run(tmp_path / "run", [sample(1, "text of the good run")])
    (run / "logs").mkdir()
    for name in ("samples.jsonl", "metrics.jsonl"):
        (run / name).rename(run / "logs" / name)
        (run / name).symlink_to(f"logs/{name}")
    assert main(["report", str(run)]) == 0
    assert "text of the good run" in content_of(run / "report.html")


def test_links_into_the_hub_s_cache_are_followed(tmp_path):
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "0"
    blob = tmp_path / "datasets--a--b" / "blobs" / "1"
    other = tmp_path / "blobs" / "1"
    for folder in (snapshot, blob.parent, other.parent):
        folder.mkdir(parents=True)
    blob.write_text("rows")
    other.write_text(SECRET)
    (snapshot / "rows.jsonl").symlink_to("../../blobs/1")
    (snapshot / "other.jsonl").symlink_to("../../../blobs/1")
    assert read_bytes(snapshot / "rows.jsonl", within=snapshot) == b"rows"
    with pytest.raises(ForeignFile, match="link that points outside its folder"):
        read_bytes(snapshot / "other.jsonl", within=snapshot)


def test_a_file_that_grows_is_read_to_the_end_that_it_had(tmp_path):
    path = tmp_path / "samples.jsonl"
    JsonLines(path).append([sample(step, "text") for step in range(3)])
    steps = []
    for row in read(path):
        steps.append(row["step"])
        JsonLines(path).append([sample(3, "text")])
    assert steps == [0, 1, 2]


def test_a_file_that_is_cut_meanwhile_ends(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a\n" * 100_000)
    with open_plain(path) as file:
        lines = lines_of(file, path)
        next(lines)
        os.truncate(path, 0)
        assert len(list(lines)) < 100_000


def test_lines_that_nobody_would_read_are_not_written(tmp_path, monkeypatch, caplog):
    path = tmp_path / "samples.jsonl"
    for module in ("grpo_ext.common.foreign_files", "grpo_ext.observe.jsonl"):
        monkeypatch.setattr(f"{module}.MOST_LINE", 1000)
    log = JsonLines(path)
    log.append([{"step": 1}, {"step": 2, "text": "x" * 1000}, {"step": 3}])
    assert [row["step"] for row in read(path)] == [1, 3]
    assert "a line for step 2 was dropped" in caplog.text
    log.cut(3)
    assert [row["step"] for row in read(path)] == [1, 3]


def test_a_folder_of_too_many_files_is_not_listed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(foreign_files, "MOST_ENTRIES", 50)
    good = write_run(tmp_path / "good", [sample(1, "text of the good run")])
    crowded = write_run(tmp_path / "crowded", [sample(1, "text")])
    for number in range(60):
        (crowded / f"{number}").touch()
    with pytest.raises(ForeignFile, match="more than 50 entries"):
        entries(crowded)
    assert runs_in(tmp_path) == [good]
    with served(tmp_path) as server:
        (good / "x").touch()
        server.folders = [crowded]
        states = json.loads(ask(server, "/runs")[2])
    assert [(state["name"], state["samples"] > 0) for state in states] == [
        ("crowded", False),
        ("good", True),
    ]
    assert main(["report", str(crowded)]) == 2
    assert "more than 50 entries" in capsys.readouterr().err
    with pytest.raises(ForeignFile, match="more than 50 entries"):
        checkpoints(crowded)


def test_names_of_runs_and_files_are_told_without_control_characters(tmp_path, capsys, caplog):
    odd = tmp_path / "a\x1b[31m\n<b>\udcff\u202e"
    write_run(odd, [sample(1, "text")])
    (odd / "samples.jsonl").write_text("[]\n")
    (odd / "run.json").write_text("[]")
    assert main(["report", str(tmp_path)]) == 0
    list(read(odd / "samples.jsonl"))
    told = capsys.readouterr().err + caplog.text
    assert "Warning: " in told
    assert not {"\x1b", "\udcff", "\u202e"} & {*told}
    assert one_line("a\x1b[31m\n\u202e 好 ") == "a\\x1b[31m\\n\\u202e 好 "


@pytest.mark.parametrize("kind", KINDS[:8], ids=lambda kind: kind.__name__)
def test_a_page_that_is_written_replaces_what_was_there_and_nothing_behind_it(tmp_path, kind):
    private = tmp_path / "private"
    private.mkdir()
    page = tmp_path / "run" / "report.html"
    page.parent.mkdir()
    beside = page.with_name(f".{page.name}.{os.getpid()}")
    for path in (page, beside):
        (private / path.name).write_text(SECRET)
        if kind.__name__ != "folder":
            kind(path, private)
    write_atomically(page, "the page")
    assert page.read_text() == "the page"
    assert not page.is_symlink()
    assert not os.path.lexists(beside)
    assert {path.read_text() for path in private.iterdir()} == {SECRET}


@pytest.mark.parametrize("kind", KINDS[:11], ids=lambda kind: kind.__name__)
def test_a_run_appends_to_no_file_behind_its_log(tmp_path, kind, caplog):
    private = private_folder(tmp_path / "private")
    before = {path.name: path.read_bytes() for path in private.iterdir()}
    run = tmp_path / "run"
    run.mkdir()
    kind(run / "samples.jsonl", private)
    log = JsonLines(run / "samples.jsonl")
    log.append([{"step": 1}])
    log.sync()
    inside = kind.__name__ == "nothing"  # a link to a file of the folder that is not there yet
    assert ("cannot be written" in caplog.text) != inside
    if kind.__name__ != "folder":
        log.cut(0)
        assert parts(run / "samples.jsonl") == []
        log.append([{"step": 2}])
        assert [row["step"] for row in read(run / "samples.jsonl")][-1] == 2
    assert {path.name: path.read_bytes() for path in private.iterdir()} == before


def test_a_log_that_is_a_link_to_the_reader_s_is_not_cut(tmp_path):
    other = tmp_path / "samples.jsonl"
    JsonLines(other).append([sample(step, SECRET) for step in (1, 2, 3)])
    before = other.read_bytes()
    run = tmp_path / "run"
    run.mkdir()
    (run / "samples.jsonl").symlink_to(other)
    JsonLines(run / "samples.jsonl").cut(1)
    assert other.read_bytes() == before


def test_earlier_logs_are_moved_past_a_link_to_nothing(tmp_path):
    run = write_run(tmp_path / "run", [sample(1, "text")])
    (run / "earlier-1").symlink_to("nothing")
    set_aside(run)
    assert (run / "earlier-2" / "samples.jsonl").is_file()


def test_sizes_and_locks_outside_are_not_told(tmp_path):
    private = private_folder(tmp_path / "private")
    run = write_run(tmp_path / "run", [sample(1, "text")])
    (run / "run.json").symlink_to(private / "run.json")
    assert size_of(run / "run.json", run) == 0
    assert size_of(run / "samples.jsonl", run) > 0
    os.mkfifo(run / ".lock")
    assert is_running(run)  # its log has just been written
