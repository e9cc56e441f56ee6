"""The report's page.

Everything is in it, nothing gets out of it, and what a model wrote stays text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.cli.main import main
from grpo_ext.observe.panels import panels
from grpo_ext.observe.read_run import read_run
from grpo_ext.observe.report.columns import MOST_MESSAGES, Explainer, sample_columns, sample_texts
from grpo_ext.observe.report.page import LIVE, build_page, packed
from grpo_ext.rewards import register
from grpo_ext.rewards.explanation import Explanation
from tests.support.forked import REPO
from tests.support.report_pages import HOSTILE, Page, played, sample, unpacked, write_run

LINES = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去"]


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=[])))
def test_data_comes_back_as_it_was_and_cannot_spell_a_tag(text):
    found = packed([text])
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", found)
    assert unpacked(found) == [text]


def test_hostile_text_stays_data(tmp_path):
    rows = [sample(1, HOSTILE, prompt=HOSTILE), sample(2, HOSTILE, prompt=HOSTILE)]
    rows.append(played(3, HOSTILE, HOSTILE, HOSTILE, more=[{"earned": HOSTILE, "role": HOSTILE}]))
    metrics = [{"step": 1, HOSTILE: 1.0, "alarm": HOSTILE, "message": HOSTILE}]
    folder = write_run(tmp_path / "run<b>", rows, metrics)
    (folder / "recipe.yaml").write_text(json.dumps({"system_prompt": HOSTILE[:40]}))
    page = Page(build_page([read_run(folder)]))
    executed = [(attrs, data) for attrs, data in page.scripts if attrs.get("type") != "text/plain"]
    assert len(executed) == 1 and not any(attrs for attrs, _ in executed)
    assert all("document.title='owned'" not in data for _, data in executed)
    assert not any(
        name.startswith("on")
        or (name in ("src", "href") and not str(value).startswith(("#", "data:,")))
        for _, attrs in page.tags
        for name, value in attrs.items()
    )
    assert (
        page.block("texts-0-0")[0][0] == HOSTILE
        and page.block("texts-0-0")[2][0].count(HOSTILE) == 3
    )
    assert page.block("prompts-0")[0][1] == [{"role": "user", "content": HOSTILE}]
    assert page.block("runs")["runs"][0]["logged"]["alarms"][0]["alarm"] == HOSTILE


def test_the_turns_of_an_episode_are_found_in_its_text():
    row = played(
        1,
        "16",
        "𝟙 high",
        "8\n> 4",
        "",
        HOSTILE,
        more=[{"counted_tokens": 2, "earned": 0.25}, {}, {"counted_tokens": 3}],
    )
    [[text, _, _, turns, *_]] = sample_texts([row], Explainer([]))
    assert [(text[start:end], *more) for start, end, *more in turns] == [
        ("16", True, 2, 0.25),
        ("𝟙 high", False, None, None),
        ("8\n> 4", True, 3, None),
        ("", False, None, None),
        (HOSTILE, True, None, None),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        3,
        [],
        ["a"],
        [{}],
        [{"role": "assistant", "content": "other"}],
        [{"content": 3}],
        {"a": 1},
        [[[]]],
    ],
)
def test_messages_that_are_not_the_text_s_leave_it_a_text(messages):
    assert sample_texts([sample(1, "a\n> b\nc", messages=messages)], Explainer([])) == [
        ["a\n> b\nc", {}, [], [], None, [("nums", "[3, 4]"), ("target", "7")]]
    ]


def test_an_episode_of_many_turns_is_shown_to_a_bound():
    [[text, _, _, turns, *_]] = sample_texts([played(1, *["x"] * 5000)], Explainer([]))
    assert len(turns) == MOST_MESSAGES and text.count("x") == 5000


def test_what_a_reward_says_of_an_episode_is_of_its_last_turn():
    row = played(1, "<answer>3 + 3</answer>", "no", "好 <answer>3 + 4</answer>")
    said, marks = Explainer([{"name": "countdown", "options": {}}]).explain(row)
    assert "Answer read: 3 + 4" in said["countdown"]
    assert [row["text"][start:end] for start, end, *_ in marks] == ["3 + 4"] and marks[0][0] > row[
        "text"
    ].index("好")


def policy_of(page):
    policy = next(
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    return dict(rule.strip().split(" ", 1) for rule in policy.split(";"))


@pytest.mark.parametrize("renew", [None, 2.0])
def test_the_policy_lets_our_script_run_and_no_other_and_nothing_out(tmp_path, renew):
    page = Page(build_page([read_run(write_run(tmp_path, [sample(1, "x")]))], renew))
    rules = policy_of(page)
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data: blob:"
    assert rules.get("connect-src") == (
        renew and "'self'"
    )  # a file asks for nothing, a served page its own server
    assert not {"frame-src", "worker-src", "font-src", "media-src", "object-src"} & set(rules)
    [script] = [data for attrs, data in page.scripts if attrs.get("type") != "text/plain"]
    assert (
        rules["script-src"]
        == f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    )
    assert ("fetch(" in script) == (renew is not None)


def test_own_scripts_never_read_text_as_html():
    for path in (REPO / "grpo_ext" / "observe" / "report" / "data").glob("*.js"):
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            *(["fetch("] if path.name != LIVE else []),
        ):
            assert way not in path.read_text(encoding="utf-8"), f"{path.name} uses {way}"


def test_the_page_holds_every_completion_with_its_figures(tmp_path):
    texts = [f"<answer>3 + {i}</answer>" for i in range(600)]
    rows = [
        sample(i // 2 + 1, text, group=i % 2, reward=i / 7, rewards={"countdown": float(i == 4)})
        for i, text in enumerate(texts)
    ]
    page = Page(build_page([read_run(write_run(tmp_path, rows))]))
    index = page.block("index-0")
    assert index["step"] == [row["step"] for row in rows]
    assert index["rewards"]["countdown"][4] == 1.0 and index["reward"][7] == 1.0
    chunks = [page.block(f"texts-0-{i}") for i in range(3)]
    assert [entry[0] for chunk in chunks for entry in chunk] == texts
    assert (
        "its value is 3, not 7" not in chunks[0][4][1]["countdown"]
        and "the answer is right" in chunks[0][4][1]["countdown"]
    )


def test_of_many_completions_a_share_of_the_prompts_is_kept_in_all_steps(tmp_path):
    rows = [
        sample(step, f"{step}", prompt=f"prompt {i}") for step in range(1, 21) for i in range(100)
    ]
    run = read_run(write_run(tmp_path, rows), max_samples=500)
    assert 300 <= len(run.samples) <= 500 and run.total_samples == 2000
    counts = {}
    for row in run.samples:
        counts[row["prompt_id"]] = counts.get(row["prompt_id"], 0) + 1
    assert set(counts.values()) == {20}
    assert run.curves["reward"].steps == list(range(1, 21))


def test_verse_faults_are_marked_on_their_characters():
    text = "<think>想</think>\n<answer>应有仙人吹笛啼</answer>"
    rewards = [{"name": "poem_format", "options": {}}, {"name": "poem_yun", "options": {}}]
    said, marks = Explainer(rewards).explain(sample(1, text, columns={"lines": LINES}))
    assert (
        "faults in the last line: 1" in said["poem_format"]
        and "the last line is in it" in said["poem_yun"]
    )
    faults = [(text[start:end], words) for start, end, kind, words in marks if kind == "fault"]
    assert len(faults) == 1
    character, words = faults[0]
    assert character in "应有仙人吹笛啼" and character in words
    _, marks = Explainer(rewards).explain(sample(1, "应是仙人放鹤归", columns={"lines": LINES}))
    assert marks == [(6, 7, "fault", "It does not rhyme, or the line has the wrong length.")]


def test_a_line_spaced_out_is_marked_where_it_stands():
    text = "好：一 棹 烟 波 去 未 归"
    explainer = Explainer([{"name": "poem_yun", "options": {}}])
    _, marks = explainer.explain(sample(1, text, columns={"lines": LINES}))
    assert [(text[start:end]) for start, end, *_ in marks] == ["归"] and marks[0][0] == len(
        text
    ) - 1


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"wanted": "BOTTLE", "level": 2}, [("wanted", "BOTTLE"), ("level", "2")]),
        (
            {"wanted": HOSTILE, "tests": [{"in": None}]},
            [("wanted", HOSTILE), ("tests", '[{"in": null}]')],
        ),
        ({"long": "x" * 2010}, [("long", "x" * 2000 + " … 10 more characters")]),
        ({str(number): "" for number in range(60)}, [(str(number), "") for number in range(50)]),
        ("wanted", []),
        (None, []),
    ],
)
def test_a_completion_is_shown_with_the_columns_of_its_row(columns, shown):
    [[*_, found]] = sample_texts([sample(1, "x", columns=columns)], Explainer([]))
    assert found == shown


@pytest.mark.parametrize("columns", [{}, {"nums": "x", "target": None}, {"nums": [3, 4]}, None])
def test_columns_of_another_shape_are_no_error(columns):
    assert Explainer([{"name": "countdown"}]).explain(
        sample(1, "<answer>3 + 4</answer>", columns=columns)
    ) in [
        ({}, []),
        (
            {
                "countdown": (
                    "Answer read: 3 + 4\n"
                    "countdown 0: it uses the numbers 3, 4, but it must use x, each once."
                )
            },
            [],
        ),
    ]


def test_a_reward_of_ones_own_explains_itself():
    def explain_brief(completion, *, limit):
        return Explanation(f"at most {limit}", ((0, 1, "fault", "too long"),))

    @register("brief", explain=explain_brief)
    def brief(completions, limit):
        return [0.0] * len(completions)

    rewards = [{"name": "mine", "reward": "brief", "options": {}}, {"name": "org/model"}]
    found = Explainer(rewards).explain(sample(1, "text", columns={"limit": 3, "other": 4}))
    assert found == ({"mine": "at most 3"}, [(0, 1, "fault", "too long")])


@pytest.mark.parametrize("marks", [None, [(0, 1)], [("a", 1, "fault", "no")], 3])
def test_marks_of_ones_own_that_are_none_are_left_out(marks):
    @register("odd_marks", explain=lambda completion: Explanation("why", marks))
    def odd_marks(completions):
        return [0.0] * len(completions)

    explainer = Explainer([{"name": "mine", "reward": "odd_marks"}])
    assert explainer.explain(sample(1, "text")) == ({}, [])


def test_the_command_writes_page_and_picture_of_several_runs(tmp_path, capsys):
    for name in ("a", "b"):
        rows = [
            sample(step, "x", rewards={"countdown": None if step == 1 else 1.0}) for step in (1, 2)
        ]
        metrics = [
            {"step": 1, "reward": 0.5},
            {"step": 2, "reward": None, "not_finite": {"reward": "nan"}, "kl": 1},
        ]
        write_run(tmp_path / name / "grpo", rows, metrics)
    out = tmp_path / "compare.html"
    words = [
        "report",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "--output",
        str(out),
        "--png",
        str(tmp_path / "c.png"),
    ]
    assert main(words) == 0
    assert "4 completions" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    assert [run["name"] for run in page.block("runs")["runs"]] == ["a", "b"]
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_a_folder_without_a_run_is_told(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_a_folder_of_runs_is_shown_as_its_runs(tmp_path):
    for name in ("b", "a/grpo", "c"):
        write_run(tmp_path / name, [sample(1, "x")])
    (tmp_path / "c" / "notes.md").write_text("tried <b>lower</b>\n" + "x" * 9000)
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path)]) == 0
    runs = Page((tmp_path / "report.html").read_text(encoding="utf-8")).block("runs")["runs"]
    assert [run["name"] for run in runs] == ["a", "b", "c"] and runs[2]["note"].startswith(
        "tried <b>lower</b>\nxx"
    )
    assert len(runs[2]["note"]) == 2000


def test_the_index_has_the_task_and_the_outcome_of_each_completion(tmp_path):
    """A group is judged by the first outcome reward that scored any of its completions."""
    scores = [{"a": 1.0, "b": None, "f": 0.5}, {"a": None, "b": None, "f": 0.5}]
    scores += [{"a": None, "b": 0.0, "f": 1.0}, {"a": None, "b": None, "f": None}]
    rows = [
        sample(1, "x", group=i // 2, rewards=rewards, **({"task": "ab"[i // 2]} if i < 3 else {}))
        for i, rewards in enumerate(scores)
    ]
    folder = write_run(tmp_path / "run", rows)
    run = read_run(folder)
    run.about = {"outcomes": ["a", "b", "f"], "rewards": [{"name": name} for name in "abf"]}
    index, _ = sample_columns(run)
    assert index["task"] == ["a", "a", "b", ""]
    assert index["outcome"] == [1.0, None, 0.0, None]
    for odd in (7, {"a": 1}, None, [3, None]):
        run.about["outcomes"] = odd
        assert len(sample_columns(run)[0]["outcome"]) == 4


def test_figures_by_task_are_panels_with_a_curve_for_each(tmp_path):
    metrics = [
        {
            "step": step,
            "reward": step / 10,
            "tasks/math/reward": step / 5,
            "tasks/code/reward": 0.1,
            "tasks/math/groups/pass_rate": 0.5,
            "eval_pass@1": 0.5,
            "eval_tasks/math/pass@1": step / 9,
            "eval_tasks/math/pass@1_se": 0.01,
            "eval_tasks/math/length": 3.0,
        }
        for step in (1, 2)
    ]
    found = {p.title: p for p in panels(read_run(write_run(tmp_path / "run", [], metrics)))}
    assert {s.label: s.values for s in found["Reward by task"].series} == {
        "math": [0.2, 0.4],
        "code": [0.1, 0.1],
    }
    [held_out] = found["Held-out rewards, by task"].series
    assert (held_out.label, held_out.errors) == ("math/pass@1", [0.01, 0.01])
    assert [s.label for s in found["Held-out rewards"].series] == ["pass@1"]
    assert "Right completions by task" in found


def test_the_page_gets_errors_and_verdicts_and_computes_none(tmp_path):
    rng = random.Random(0)
    noise = [{"step": step, "reward": 0.5 + rng.gauss(0, 0.1)} for step in range(1, 26)]
    held = [
        {"step": step, "eval_countdown": mean, "eval_countdown_se": 0.03, "eval_problems": 90}
        for step, mean in ((0, 0.2), (25, 0.7))
    ]
    folder = write_run(tmp_path, [], [*noise, *held])
    [run] = Page(build_page([read_run(folder)])).block("runs")["runs"]
    held_out, reward = run["changes"]
    assert (held_out["title"], held_out["label"]) == ("Held-out rewards", "countdown")
    assert (held_out["first"], held_out["last"], held_out["last_error"]) == (0.2, 0.7, 0.03)
    assert held_out["verdict"] == "rose" and held_out["last_steps"] == [25, 25]
    assert reward["title"] == "Reward" and reward["verdict"] == "did not clearly change"
    assert reward["first_error"] > 0 and reward["first_steps"] == [1, 5]
    for path in (REPO / "grpo_ext" / "observe" / "report" / "data").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "hypot" not in text and "sqrt" not in text and "1.96" not in text, path.name
