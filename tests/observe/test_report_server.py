"""The served report.

A growing log reaches it, nobody else does, and neither side grows with the number of renewals.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import re
import time
import tracemalloc

import pytest

from grpo_ext.cli.main import main
from grpo_ext.observe.jsonl import JsonLines
from grpo_ext.observe.report import serve
from grpo_ext.observe.report.serve import ReportServer
from grpo_ext.observe.run_folders import is_running
from tests.support.browser import Browser, find_browser
from tests.support.forked import LIMIT, Forked
from tests.support.report_pages import HOSTILE, Page, sample, write_run
from tests.support.report_server import ask, served

needs_browser = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")


def data(server, path):
    status, _, body = ask(server, path)
    assert status == 200, path
    return json.loads(body)


def rows_of(step, count=4, **more):
    return [
        sample(step, f"text {step} {i}", group=i // 2, reward=i / 4, **more) for i in range(count)
    ]


def grow(folder, steps, count=4):
    for step in steps:
        JsonLines(folder / "samples.jsonl").append(rows_of(step, count))
        JsonLines(folder / "metrics.jsonl").append(
            [{"step": step, "reward": step / 10, "rewards/countdown/mean": 0.5, "kl": step}]
        )


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/samples.jsonl",
        "/../../etc/passwd",
        "/%2e%2e/",
        "/about/7",
        "/about/-1",
        "/about/0/..",
        "/metrics/0",
        "/texts/0?start=0",
        "/texts/0?start=a&stop=1",
        "/metrics/0?start=0&step=" + "9" * 5000,
        "/about",
        "/runs/",
        "/run.json",
    ],
)
def test_nothing_is_read_but_the_page_and_its_data(tmp_path, path):
    folder = write_run(tmp_path / "run", rows_of(1))
    with served(folder) as server:
        data(server, "/runs")
        status, _, body = ask(server, path)
        assert status == 404 and b"text 1" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "CONNECT"])
def test_nothing_but_get_is_answered(tmp_path, method):
    with served(write_run(tmp_path, rows_of(1))) as server:
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        assert ask(server, "/runs", method, body=b"{}")[0] == 501
        assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]:{port}",
        "localhost.evil:{port}",
    ],
)
@pytest.mark.parametrize("path", ["/", "/runs"])
def test_another_host_s_page_cannot_read_it(tmp_path, host, path):
    with served(write_run(tmp_path, rows_of(1))) as server:
        assert ask(server, path, host=host.format(port=server.server_port))[0] == 403
        status, headers, _ = ask(server, path, host=f"localhost:{server.server_port}")
        assert (
            status == 200
            and headers["X-Content-Type-Options"] == "nosniff"
            and headers["Cache-Control"] == "no-store"
        )
        assert (
            "Access-Control-Allow-Origin" not in headers and server.server_address[0] == "127.0.0.1"
        )


def test_the_page_has_no_data_and_a_taken_port_is_no_error(tmp_path):
    with (
        served(write_run(tmp_path, rows_of(1))) as server,
        ReportServer([tmp_path], server.server_port) as other,
    ):
        assert other.server_port != server.server_port
        page = Page(ask(server, "/")[2].decode())
        assert page.block("runs")["runs"] == [] and b"text 1" not in ask(server, "/")[2]


def whole_log(server, kind, place=None):
    """What a page gets that asks until there is no more, from a place on: the answers."""
    found = []
    while True:
        query = "&".join(
            f"{key}={value}" for key, value in (place or {"start": 0, "step": 0}).items()
        )
        found.append(data(server, f"/{kind}/0?{query}"))
        place = found[-1]["next"]
        if place["start"] != found[-1]["stop"] or found[-1]["stop"] == found[-1]["start"]:
            return found


def test_a_growing_log_comes_in_pieces_that_replace_the_last_step(tmp_path):
    folder = write_run(tmp_path / "run", [], [])
    grow(folder, [1, 2])
    with served(tmp_path) as server:
        assert [run["name"] for run in data(server, "/runs")] == ["run"]
        [first] = whole_log(server, "samples")
        assert first["index"]["step"] == [1] * 4 + [2] * 4
        JsonLines(folder / "samples.jsonl").append(rows_of(2, 2))  # the step goes on
        grow(folder, [3])
        [second] = whole_log(server, "samples", first["next"])
        assert (
            second["start"] == first["next"]["start"]
            and second["index"]["step"] == [2] * 6 + [3] * 4
        )
        assert second["panels"][0]["series"][0]["steps"] == [2, 3]
        places = second["index"]["place"]
        texts = data(server, f"/texts/0?start={places[1]}&stop={places[7]}")
        assert [place for place, *_ in texts] == places[1:7] and [text for _, _, text, *_ in texts][
            :2
        ] == [
            "text 2 1",
            "text 2 2",
        ]
        assert texts[0][1] == [{"role": "user", "content": "Use 3, 4 to make 7."}]


def test_completions_come_with_their_task_and_the_figures_of_their_episode(tmp_path):
    figures = {"task": "games", "turns": 3, "end": "room" * 100, "environment_time": 0.25}
    write_run(tmp_path / "run", rows_of(1, 1, **figures) + rows_of(1, 1))
    with served(tmp_path) as server:
        data(server, "/runs")
        index = data(server, "/samples/0?start=0&step=0")["index"]
    assert index["task"] == ["games", ""] and index["turns"] == [3, None]
    assert index["end"] == ["room" * 8, None] and index["environment_time"] == [0.25, None]


def test_long_logs_come_in_slices_that_make_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "SLICE", 900)
    grow(tmp_path, range(1, 60))
    with served(tmp_path) as server:
        data(server, "/runs")
        for kind in ("samples", "metrics"):
            answers = whole_log(server, kind)
            assert len(answers) > 3
            if kind == "samples":
                steps = [step for answer in answers for step in answer["index"]["step"]]
            else:
                series = [
                    next(p for p in answer["panels"] if p["title"].startswith("KL"))["series"][0]
                    for answer in answers
                ]
                steps = [step for one in series for step in one["steps"]]
            assert steps == [
                step for step in range(1, 60) for _ in range(4 if kind == "samples" else 1)
            ]


def test_a_log_that_a_resume_has_cut_begins_again(tmp_path):
    grow(tmp_path, range(1, 6))
    with served(tmp_path) as server:
        data(server, "/runs")
        place = {kind: whole_log(server, kind)[-1]["next"] for kind in ("samples", "metrics")}
        for log in ("samples.jsonl", "metrics.jsonl"):
            JsonLines(tmp_path / log).cut(2)
        assert [whole_log(server, kind, place[kind])[0]["start"] for kind in place] == [0, 0]
        grow(tmp_path, range(30, 34))
        [again] = whole_log(server, "samples", place["samples"])
        assert again["start"] == 0 and set(again["index"]["step"]) == {1, 2, 30, 31, 32, 33}


def test_bad_lines_are_told_and_hostile_text_comes_as_data(tmp_path):
    write_run(tmp_path, [sample(1, HOSTILE, prompt=HOSTILE)])
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write("{\n")
    with served(tmp_path) as server:
        data(server, "/runs")
        [found] = whole_log(server, "samples")
        assert "line 2" in found["faults"][0]
        _, headers, body = ask(server, f"/texts/0?start=0&stop={found['stop']}")
        assert (
            headers["Content-Type"].startswith("application/json")
            and json.loads(body)[0][2] == HOSTILE
        )


def test_a_run_is_running_while_its_lock_is_held(tmp_path):
    write_run(tmp_path, rows_of(1))
    assert is_running(tmp_path)  # without a lock: it was written just now
    with (tmp_path / ".lock").open("w") as lock:
        assert not is_running(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_the_server_keeps_nothing_of_what_it_sends(tmp_path):
    grow(tmp_path, range(1, 80), count=8)
    try:
        with served(tmp_path) as server:
            server.daemon_threads = False  # its end waits for those that answer
            for _ in range(3):
                data(server, "/runs"), whole_log(server, "samples"), whole_log(server, "metrics")
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(8):
                data(server, "/runs"), whole_log(server, "samples"), whole_log(server, "metrics")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 500_000  # the log has 270,000 bytes, eight times


def until(browser, condition, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not browser.run(f"document.readyState === 'complete' && ({condition})"):
        assert time.monotonic() < end, (
            condition,
            browser.run("byId('made').textContent"),
            browser.errors,
        )
        time.sleep(0.05)


@needs_browser
def test_a_page_follows_its_run_and_stays_as_small(tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.parent.mkdir()
    with served(folder.parent, renew=0.02, most=80) as server, Browser() as browser:
        browser.open(server.url)
        until(browser, "byId('headline')?.textContent.startsWith('No run yet')")
        grow(folder, range(1, 6))
        until(browser, "browser.samples?.count === 20 && page.runs[0].steps === 5")
        until(browser, "page.runs[0].series('Reward', 'reward').steps.length === 5")
        browser.run("select(7, true)")
        until(browser, "document.querySelector('#detail .completion')?.textContent === 'text 2 3'")
        grow(folder, [6])
        until(browser, "browser.samples.count === 24")
        assert (
            browser.run("document.querySelector('#detail .completion').textContent") == "text 2 3"
        )  # nothing moves
        assert browser.run(
            "document.querySelector('.row[aria-selected=true] .head').textContent"
        ).startswith("0.75step 2")
        grow(folder, range(7, 60))
        until(
            browser,
            (
                "page.runs[0].steps === 59 && browser.samples.count <= 100 && "
                "browser.samples.total === 236"
            ),
        )
        grow(tmp_path / "runs" / "second", [1])
        until(browser, "page.runs.length === 2 && !byId('several').hidden")
        started = browser.run("live.renewals")
        size = heap(browser)
        asked = len(browser.requests)
        until(browser, f"live.renewals > {started + 150}")
        assert heap(browser) - size < 1_000_000
        browser.run("0")
        assert not [
            url for url in browser.requests[asked:] if not url.endswith("/runs")
        ]  # nothing new, nothing sent
        assert {url.split("/")[2] for url in browser.requests if url.startswith("http")} == {
            f"127.0.0.1:{server.server_port}"
        }
        assert not browser.errors


def heap(browser):
    browser.ask("HeapProfiler.collectGarbage")
    return browser.ask("Runtime.getHeapUsage")["usedSize"]


@needs_browser
def test_completions_keep_their_texts_and_the_reader_her_place_when_others_are_dropped(tmp_path):
    def add(step, *rows):
        JsonLines(tmp_path / "samples.jsonl").append([row for some in rows for row in some])
        JsonLines(tmp_path / "metrics.jsonl").append([{"step": step, "reward": 0.5}])

    for step in (1, 2, 3):
        add(step, rows_of(step, 2, mode="eval"), rows_of(step, 40))
    with served(tmp_path, renew=0.02, most=60) as server, Browser() as browser:
        browser.open(server.url)
        until(browser, "browser.samples?.dropped > 0")
        # the evaluations of steps 1 and 2 have dropped lines of training between them
        texts = (
            "Promise.all([...browser.samples.index.step.keys()]"
            ".map((i) => browser.samples.entry(i).then(([text]) => text)))"
        )
        steps = browser.run("browser.samples.index.step")
        assert [text.split()[1] for text in browser.run(texts)] == list(map(str, steps))
        assert {1, 2, 3} == {*steps} and len(steps) < 126
        browser.run("select(19, true)")
        until(browser, "document.querySelector('#detail .completion')?.textContent === 'text 3 1'")
        add(4, rows_of(4, 40))
        until(browser, "browser.samples.total === 166")
        assert browser.run("browser.shown[browser.selected] === detail.at && detail.at") == 5
        until(browser, "document.querySelector('#detail .completion')?.textContent === 'text 3 1'")
        assert not browser.errors


def test_without_completions_the_rewards_are_those_of_the_log(tmp_path):
    folder = write_run(tmp_path, rows_of(1, 2, mode="eval"))
    JsonLines(folder / "metrics.jsonl").append([{"step": 1, "reward": 0.5}])
    with served(folder) as server:
        data(server, "/runs")
        assert (
            data(server, "/samples/0?start=0&step=0")["panels"] == []
        )  # they would hide those of the log
        assert any(panel["series"] for panel in data(server, "/metrics/0?start=0&step=0")["panels"])
        assert ask(server, "http://[")[0] == 404


@needs_browser
def test_a_server_that_ends_leaves_the_page_as_it_is(tmp_path):
    grow(tmp_path, [1, 2])
    with Browser() as browser:
        with served(tmp_path, renew=0.05) as server:
            browser.open(server.url)
            until(browser, "browser.samples?.count === 8")
        until(browser, "byId('made').textContent.startsWith('Not updated')")
        assert browser.run("document.querySelectorAll('.row').length") == 8


def test_the_command_serves_until_it_is_interrupted(tmp_path, capsys):
    folder = write_run(tmp_path / "run", rows_of(1))
    process = Forked(main, ["report", str(tmp_path), "--serve", "0"])
    try:
        process.wait_for("Ctrl-C ends it")
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", process.printed)
        connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=LIMIT)
        connection.request("GET", "/runs")
        assert json.loads(connection.getresponse().read())[0]["name"] == "run"
    finally:
        process.kill()
    assert not (tmp_path / "report.html").exists() and not (folder / "report.html").exists()
    assert main(["report", str(tmp_path / "none"), "--serve"]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_verdicts_are_on_the_whole_log(tmp_path):
    """The page takes a log in slices, of which none says how a curve changed."""
    folder = write_run(tmp_path / "a", [], [])
    grow(folder, range(1, 31), count=1)
    with served(tmp_path) as server:
        data(server, "/runs")
        [reward] = [one for one in data(server, "/changes/0") if one["title"] == "Reward"]
        assert (reward["first_steps"], reward["last_steps"]) == ([1, 5], [26, 30])
        assert reward["verdict"] == "rose" and reward["last"] == pytest.approx(2.8)
