"""What the report shows of a run, in headless Chromium.

Its result, groups, tokens, changes, links, tables of several runs.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.report import READY
from grpo_ext.observe.report.page import write_report
from tests.support.browser import Browser, find_browser
from tests.support.report_pages import HOSTILE, sample, write_run

pytestmark = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
TEXT = HOSTILE.replace("\ud800", "")  # which a browser shows as another character
TOKENS = {"text": [TEXT, "b"], "logp": [-2.0, 0.0], "advantage": [-1.0, None]}
FIGURES = {"text": ["a", "b"], "logp": [-0.5, None], "advantage": [1.0, 1.0], "age": [0, 1]}
AT = (
    "new Promise((done) => { const wait = () => (%s) ? done(true) : "
    "setTimeout(wait, 10); wait(); })"
)


def rewards(value):
    return {"reward": value, "rewards": {"countdown": value}}


def rows():
    train = [
        sample(
            step,
            f"{step}.{k} {TEXT if k == 0 else ''}",
            group=2,
            **rewards(float(k >= 4 - step)),
            tokens=TOKENS,
        )
        for step in (1, 2, 3)
        for k in range(4)
    ]
    for row in train:
        row["advantage"] = 0.5
    held = {0: "one two three four", 3: "one two 3 four five"}
    evals = [
        sample(step, text, mode="eval", prompt="asked", **rewards(float(step == 3)))
        for step, text in held.items()
    ]
    return [evals[0], *train, evals[1]]


def metrics(last):
    means = [(0, 0.2), (3, last)]
    held = {
        step: {"step": step, "eval_countdown": mean, "eval_countdown_se": 0.03}
        for step, mean in means
    }
    steps = [
        {
            "step": s,
            "kl": s / 10,
            "entropy": 1.0,
            "time/train": 3.0,
            "time/generation": 1.0,
            "time/waiting": 6.8e-6,  # too short to be worth a curve or a part of the bar
            "step_time": 5.0,
        }
        for s in (1, 2, 3)
    ]
    steps[1] |= {"time/checkpoint": 1.5}  # once in three lines
    return [held[0], *steps, held[3], {"step": 3, "train_runtime": 9.0}]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_report([write_run(folder, rows(), metrics(0.7))], folder / "report.html")
    with Browser() as browser:
        browser.open(folder / "report.html")
        browser.run(READY)
        yield browser
        assert not browser.errors and browser.run("document.title") != "owned"


def text(browser, where):
    return browser.run(f"document.querySelector({where!r}).textContent")


def test_the_result_stands_at_the_top(page):
    assert text(page, ".number") == "0.700 ± 0.030"
    said = text(page, ".sentence").replace("\u00a0", " ")
    assert said.startswith(
        "countdown on held-out prompts rose. It was 0.200 ± 0.030 before the first step, and is "
        "0.700 ± 0.030 at step 3."
    )
    assert text(page, ".state") == "done" and "steps 3" in text(page, ".facts")


def test_until_the_completions_are_read_the_page_says_so(page, tmp_path):
    write_run(tmp_path, [], metrics(0.7))
    (tmp_path / "samples.jsonl").unlink(missing_ok=True)
    write_report([tmp_path], tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert written.count("Loading the completions …") == 2
    assert "No completions were logged." not in written.partition("<script")[0]
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.run(READY)
        for place in ("#completions-empty", "#pairs-body"):
            assert text(browser, place) == "No completions were logged.", place
        assert not browser.errors
    assert "Loading" not in page.run("document.querySelector('main').innerText")


def test_a_curve_that_does_not_change_is_named_instead_of_drawn(page):
    assert text(page, "#silent").startswith(
        "Left out because they did not change: Entropy, nats per token: 1"
    )
    drawn = page.run(
        "[...document.querySelectorAll('#panels figcaption')].map((title) => title.textContent)"
    )
    assert "KL to the reference" in drawn and "Entropy, nats per token" not in drawn


def test_phases_are_shares_of_a_step(page):
    label = page.run("document.querySelector('.bar').getAttribute('aria-label')")
    assert label == "generation 18 %, train 55 %, other 18 %, checkpoint 9 %"  # of 5.5 seconds


def test_a_group_is_shown_side_by_side_the_best_first(page):
    page.run("jump(browser.samples.index.step.lastIndexOf(1)), showGroup(true)")
    page.run(AT % "document.querySelectorAll('.card').length === 4")
    cards = page.run(
        "[...document.querySelectorAll('.card')].map((one) => "
        "[one.querySelector('b').textContent, one.style.borderTopColor])"
    )
    assert [reward for reward, _ in cards] == ["1", "0", "0", "0"] and cards[0][1] != cards[1][1]
    assert (
        page.run("document.querySelectorAll('.card .completion')[1].textContent") == f"1.0 {TEXT}"
    )
    page.key("g")
    page.run(AT % "!document.querySelector('.card')")


def test_tokens_are_colored_on_demand(page):
    page.run(
        "jump(browser.samples.index.step.lastIndexOf(1)), "
        "[...document.querySelectorAll('#detail button')].length"
    )
    page.run(
        AT
        % (
            "[...document.querySelectorAll('#detail button')].some((one) "
            "=> one.textContent === 'log-prob')"
        )
    )
    page.run(
        "[...document.querySelectorAll('#detail button')].find((one) => one.textContent === "
        "'log-prob').click()"
    )
    page.run(AT % "document.querySelectorAll('.token').length === 2")
    [first, second] = page.run(
        "[...document.querySelectorAll('.token')].map((one) => [one.textContent, one.title])"
    )
    assert first == [TEXT, "log-prob -2, probability 0.14"] and second[0] == "b"
    page.run("detail.coloring = ''")


def test_before_and_after_marks_what_changed(page):
    page.run("document.getElementById('pairs').scrollIntoView()")
    page.run(AT % "document.querySelector('.pair')")
    assert page.run(
        "[...document.querySelectorAll('.pair del')].map((one) => one.textContent)"
    ) == ["three"]
    assert page.run(
        "[...document.querySelectorAll('.pair ins')].map((one) => one.textContent)"
    ) == ["3", " five"]
    assert text(page, ".changes") == "countdown 0 → 1"


@pytest.mark.parametrize(
    "before, after, stretches",
    [
        ("a b", "a b", None),
        ("a b c d", "a x c d", [[[2, 3]], [[2, 3]]]),
        ("", "a", None),
        ("a b c", "x y z w v u t s", None),
        ("水作青龙", "水作青龙 盘", [[], [[4, 6]]]),
    ],
)
def test_differences_are_by_words(page, before, after, stretches):
    assert page.run(f"differencesOf({before!r}, {after!r})") == stretches


def test_marks_count_a_wide_character_as_two(page):
    wide = "𝟙a<answer>𠮷b</answer>"
    said = [[10, 12, "answer", "read"]]
    assert page.run(f"inUnits({wide!r}, {said})") == [[11, 14, "answer", "read"]]
    assert page.run(f"inUnits('plain', {said})") == said
    assert page.run(f"{wide!r}.slice(11, 14)") == "𠮷b"


@pytest.mark.parametrize(
    "prompt, shown",
    [
        ("plain", [["", "plain"]]),
        (
            [{"role": "user", "content": "asked"}, {"content": 3}, "said", [1]],
            [["user", "asked"], ["", "3"], ["", "said"], ["", "[1]"]],
        ),
        (None, [["", "null"]]),
    ],
)
def test_a_prompt_is_shown_whatever_it_is(page, prompt, shown):
    assert page.run(f"messagesOf({json.dumps(prompt)})") == shown


@pytest.mark.parametrize(
    "tokens, found",
    [
        (FIGURES, FIGURES),
        ({**FIGURES, "age": [0], "logp": "x"}, {"text": ["a", "b"], "advantage": [1.0, 1.0]}),
        ({**FIGURES, "text": ["a", 3]}, None),
        ({"logp": [1.0]}, None),
        ([1], None),
        (None, None),
    ],
)
def test_tokens_are_kept_with_the_figures_that_fit_them(page, tokens, found):
    assert page.run(f"tokenColumns({json.dumps(tokens)})") == found


def test_more_tokens_than_a_browser_shows_are_cut(page):
    many = (
        "tokenColumns({ text: new Array(MOST_TOKENS + 1).fill('a'), age: new Array(MOST_TOKENS + "
        "1).fill(0) })"
    )
    assert page.run(f"Object.values({many}).map((column) => column.length === MOST_TOKENS)") == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "recipe, about, found",
    [
        ({}, {"outcome": "b", "pass_threshold": 0.5}, ["b", 0.5]),
        ({"pass_threshold": 0.75}, {"pass_threshold": 0.5}, ["a", 0.75]),
        ({}, {"outcome": "c", "pass_threshold": "x"}, ["a", 1]),
    ],
)
def test_the_outcome_is_the_trainer_s_or_the_first_reward(page, recipe, about, found):
    given = json.dumps(
        {"recipe": recipe, "about": about, "rewards": [{"name": "a"}, {"name": "b"}]}
    )
    assert page.run(f"[new Run(0, {given})].map((run) => [run.outcome, run.passThreshold])") == [
        found
    ]


def test_a_histogram_bar_lists_its_completions(page):
    page.run("document.querySelectorAll('#histogram button')[1].click()")
    page.run(AT % "byId('count').textContent.startsWith('7 of 14')")
    page.run("document.querySelector('#filters button[type=reset]').click()")
    page.run(AT % "byId('count').textContent.startsWith('14 of 14')")


def test_a_link_opens_at_its_completion(page, tmp_path):
    page.run("select(browser.shown.indexOf(6), true)")
    page.run(AT % "location.hash.startsWith('#at/')")
    address = page.run("location.href")
    page.run("select(0)")
    with Browser() as other:
        other.open(address)
        other.run(READY)
        other.run(
            AT % "document.querySelector('#detail .completion')?.textContent.startsWith('2.1')"
        )
        other.run("location.hash = '#at/none/%ff/x'")
        other.run(
            AT % "document.querySelector('#detail .completion')?.textContent.startsWith('2.1')"
        )
        assert not other.errors


def test_several_runs_are_a_table_that_can_be_sorted(tmp_path):
    for name, last in (("a", 0.4), ("b", 0.9), ("c", 0.6)):
        folder = write_run(tmp_path / name, rows(), metrics(last))
        (folder / "recipe.yaml").write_text(f"learning_rate: {last}\nbeta: 0\n")
        (folder / "notes.md").write_text(f"note of {name} {TEXT}")
    write_report([tmp_path], tmp_path / "report.html")
    names = (
        "[...document.querySelectorAll('#several tbody tr')].map((row) => "
        "row.querySelector('b').textContent)"
    )
    with Browser(width=390, height=844, phone=True) as browser:
        browser.open(tmp_path / "report.html")
        browser.run(READY)
        assert text(browser, ".sentence").startswith(
            "countdown on held-out prompts is highest in b, of 3 runs."
        )
        assert browser.run(names) == ["a", "b", "c"]
        browser.run(
            "[...document.querySelectorAll('#several th button')].find((one) => "
            "one.textContent === 'last').click()"
        )
        assert browser.run(names) == ["b", "c", "a"]
        assert text(browser, "#several tbody tr .note") == f"note of b {TEXT}"
        assert text(browser, "#several .differing") == "learning_rate 0.9"
        browser.run("document.querySelector('#several input').click()")
        assert "b" not in text(browser, "#panels .legend")
        assert browser.run("document.documentElement.scrollWidth") == 390 and not browser.run(
            "byId('fold').open"
        )
        assert not browser.errors


def test_long_curves_are_thinned_and_keep_their_mean(page):
    found = page.run(
        "(() => { const known = new Map(), steps = [...Array(10000).keys()].map((i) => i + 1);"
        " merge(known, [{ title: 'x', series: [{ label: 'x', steps, values: [...steps] }] }], "
        "-Infinity, MOST_VALUES);"
        " const [{ steps: few, values }] = known.get('x').series;"
        " return [few.length, few.at(-1), values.length, values.reduce((a, b) => a + b) / "
        "values.length]; })()"
    )
    assert found == [2500, 10_000, 2500, 5000.5]
