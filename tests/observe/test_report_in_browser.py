"""The report in headless Chromium.

An episode is a conversation, what it says stays text, and no length holds the page up.
"""

from __future__ import annotations

import pytest

from benchmarks.report import READY
from grpo_ext.observe.report.page import write_report
from tests.support.browser import Browser, find_browser
from tests.support.report_pages import HOSTILE, played, sample, write_run

pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
SHOWN = (
    "[...document.querySelectorAll('#detail .turn')].map((turn) => [turn.className, "
    "turn.textContent])"
)
SCRIPTS = "document.scripts.length + document.images.length"
MORE = [{"counted_tokens": 2, "earned": 0.25}, {}, {"counted_tokens": 0, "earned": -0.5}]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    text = HOSTILE.replace("\ud800", "")  # which a browser shows as another character
    hostile = played(1, "16", text, text, more=MORE)
    long = played(2, *["y" * 100] * 3000, prompt="many turns")
    rows = [
        hostile,
        long,
        sample(3, "z" * 3_000_000, prompt="long"),
        played(4, "16", "high", "8", mode="eval", more=MORE),
    ]
    write_report([write_run(folder, [*rows, played(5, "8", mode="eval")])], folder / "report.html")
    with Browser(width=390, height=844, phone=True) as browser:
        browser.open(folder / "report.html")
        browser.run(READY)
        browser.scripts, browser.hostile = browser.run(SCRIPTS), text
        yield browser
        assert not browser.errors


def choose(page, at):
    """Show the completion at this place of the list; wait until it is there."""
    step = at + 1
    return page.run(
        f"select({at}), new Promise((done) => {{ const wait = () => "
        f"document.getElementById('detail').textContent"
        f".startsWith('step {step} ') ? done() : setTimeout(wait, 10); wait(); }})"
    )


def test_a_completion_stands_below_the_columns_of_its_row(page):
    choose(page, 0)
    rows = "[...document.querySelectorAll('#detail table')][0].innerText"
    assert page.run(rows).split() == ["nums", "[3,", "4]", "target", "7"]


def test_an_episode_is_a_conversation_of_texts(page):
    choose(page, 0)
    assert page.run(SHOWN) == [
        ["turn model counts", "turn 1 · 2 tokens in the loss · earned +0.2516"],
        ["turn world", f"environment{page.hostile}"],
        ["turn model", f"turn 2 · left out of the loss · earned −0.5{page.hostile}"],
    ]
    assert page.run("document.title") != "owned" and page.run(SCRIPTS) == page.scripts
    row = (
        "[...document.querySelectorAll('#row-0 .text span')].map((piece) => [piece.className, "
        "piece.textContent])"
    )
    assert page.run(row) == [
        ["model", "16"],
        ["world", page.hostile[:160]],
        ["model", page.hostile[:160]],
    ]


def test_no_length_holds_the_page_up(page):
    choose(page, 1)
    assert page.run("document.querySelectorAll('#detail .turn').length") == 200
    assert "more characters" in page.run(
        "document.querySelector('.conversation').lastChild.textContent"
    )
    choose(page, 2)
    assert (
        100_000
        < page.run("document.querySelector('#detail .completion').textContent.length")
        < 100_100
    )
    assert page.run("document.documentElement.scrollWidth") == 390


def test_before_and_after_shows_conversations(page):
    page.run("document.getElementById('pairs').scrollIntoView()")
    page.run(
        "new Promise((done) => { const wait = () => "
        "document.querySelector('.pair') ? done() : setTimeout(wait, 10); wait(); })"
    )
    sides = page.run(
        "[...document.querySelectorAll('.pair .conversation')].map((side) => side.textContent)"
    )
    assert sides == [
        "turn 1 · 2 tokens · earned +0.2516environmenthighturn 2 · 0 tokens · earned −0.58",
        "turn 18",
    ]


ENDED = ("environment", "room", "turns", "failures")
FIGURES = (
    "[...document.querySelectorAll('#episodes figure')].map((one) => [one.querySelector("
    "'figcaption').textContent, [...one.querySelectorAll('.legend span')].map((part) => "
    "part.textContent), [...one.querySelectorAll('rect')].map((cell) => "
    "[cell.getAttribute('x') / 10, Math.round(cell.getAttribute('height') - 0.3)])])"
)
LONG = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_episodes_are_distributed_by_step(tmp_path):
    """Of two steps: one turn, then three; many different seconds have bins of equal counts."""
    rows = [played(0, "16", mode="eval", turns=7, end="room", environment_time=0.1)]
    for step, turns in ((1, 1), (2, 3)):
        for number in range(12):
            seconds = LONG[number] * step
            end = "environment" if step == 2 else ENDED[number % 4]
            figures = {"turns": turns, "end": end, "environment_time": seconds, "length": step}
            rows.append(played(step, "16", group=number, **figures))
    hostile = {"turns": HOSTILE, "end": "constructor", "environment_time": [HOSTILE]}
    rows += [played(2, "16", **hostile), sample(2, "no episode")]
    write_report([write_run(tmp_path, rows)], tmp_path / "report.html")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.run(READY)
        turns, tokens, seconds, ends = browser.run(FIGURES)
        assert not browser.errors
    assert turns == ["turns", ["1", "3"], [[0, 100], [1, 100]]]
    assert tokens == ["tokens from the model", ["1", "2"], [[0, 100], [1, 100]]]
    assert seconds[1] == ["0.25 to 0.5", "1 to 2", "4 to 8", "16 to 32", "64 to 128", "256 to 1024"]
    assert [height for step, height in seconds[2] if step == 0] == [17, 17, 17, 17, 17, 17]
    assert ends[1] == [
        "environment failed",
        "length limit",
        "turn limit",
        "environment ended it",
    ]
    assert ends[2] == [[0, 25], [0, 25], [0, 25], [0, 25], [1, 100]]


def test_steps_in_any_order_are_distributed(page):
    """The logs of others may be joined or edited, so that a later line has an earlier step."""
    made = "distributionOf('turns', [0, 1, 2], [1, 2, 1], evenBins, [3, 1, 2])"
    cells = f"[...{made}.querySelectorAll('rect')].map((cell) => cell.getAttribute('x') / 10)"
    assert page.run(cells) == [0, 1, 2]


def test_without_episodes_there_are_no_distributions_of_them(tmp_path):
    rows = [sample(1, "8"), sample(2, "9")]
    write_report([write_run(tmp_path, rows)], tmp_path / "report.html")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.run(READY)
        assert browser.run("document.getElementById('episodes').hidden") is True


def test_charts_fit_on_paper(tmp_path):
    write_report([write_run(tmp_path, [sample(1, "8"), sample(2, "9")])], tmp_path / "report.html")
    over = (
        "(({ clientWidth, firstChild }) => firstChild.clientWidth - "
        "clientWidth)(document.querySelector('.plot'))"
    )
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.run(READY)
        assert browser.run(over) <= 0
        browser.run("Chart.redraw = () => {}")  # paper gets its layout after `beforeprint`
        browser.ask("Emulation.setEmulatedMedia", media="print")
        browser.ask(
            "Emulation.setDeviceMetricsOverride",
            width=690,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        assert browser.run(over) <= 0
