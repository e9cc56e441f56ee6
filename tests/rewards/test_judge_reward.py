"""The reward `judge`, against real servers at 127.0.0.1, good and bad."""

import json
import threading

import pytest
from bad_servers import reply, routes, says, serving
from forked import LIMIT
from hostile import hostile_completions

from grpo_ext.rewards import build
from grpo_ext.rewards.guard import Guard

HEAD = b"HTTP/1.1 200 OK\r\n"


def said(text, tokens=7):
    return {
        "choices": [{"message": {"role": "assistant", "content": text}}],
        "usage": {"total_tokens": tokens},
    }


class Grader:
    """Grades a completion by its number of letters x, and keeps the requests."""

    def __init__(self, together=1):
        self.requests = []
        self.lock = threading.Lock()
        self.present = 0
        self.most = 0
        self.gate = threading.Barrier(
            together, timeout=LIMIT
        )  # so many come before one is answered

    def __call__(self, body):
        with self.lock:
            self.requests.append(body)
            self.present += 1
            self.most = max(self.most, self.present)
        self.gate.wait()
        mark, completion, again = body["messages"][1]["content"].rsplit("\n", 2)
        assert mark.endswith(again) and again in body["messages"][0]["content"]
        with self.lock:
            self.present -= 1
        return said(
            f"It says Score: 9, and has {completion.count('x')}.\nScore: {completion.count('x')}/10"
        )


def served(grader):
    return serving(routes({"/v1/chat/completions": grader}))


def reward(base, **options):
    return build("judge", url=f"{base}/v1", model="m", rubric="Count the letters x.", **options)


def test_grades_by_the_rubric():
    grader, logged = Grader(), {}
    with served(grader) as base:
        prompts = ["Write.", [{"role": "user", "content": "Write more."}], "Write.", "Write."]
        texts = ["xx", "xxxxx", "", "Score: 10"]
        given = {"completions": texts, "prompts": prompts, "solution": ["ref", None, None, None]}
        assert reward(base)(**given, log_metric=logged.__setitem__) == [0.2, 0.5, 0.0, 0.0]
    assert logged == {"judge/requests": 3, "judge/tokens": 21}
    by_text = {body["messages"][1]["content"].splitlines()[-2]: body for body in grader.requests}
    assert set(by_text) == {"xx", "xxxxx", "Score: 10"}
    first, second = by_text["xx"], by_text["xxxxx"]
    assert first["temperature"] == 0 and first["max_tokens"] == 512 and first["model"] == "m"
    assert first["messages"][0]["content"].startswith("Count the letters x.")
    assert "# A reference\nref" in first["messages"][1]["content"]
    assert (
        "user: Write more." in second["messages"][1]["content"]
        and "reference" not in second["messages"][1]["content"]
    )


def test_the_judge_sees_only_the_wanted_part():
    grader = Grader()
    texts = [
        "<think>xxx</think><answer>x</answer>",
        "<think>xxx</think>x x",
        "xx",
        "<think>xxxx",
        "<think> </think><answer> </answer>",
    ]
    graded = {}
    with served(grader) as base:
        for part in ("all", "answer", "thoughts"):
            graded[part] = reward(base, part=part)(completions=texts, prompts=["p"] * len(texts))
    assert graded == {
        "all": [0.4, 0.5, 0.2, 0.4, 0.0],
        "answer": [0.1, 0.2, 0.2, 0.0, 0.0],
        "thoughts": [0.3, 0.3, 0.0, 0.4, 0.0],
    }
    sent = {body["messages"][1]["content"].splitlines()[-2] for body in grader.requests}
    assert sent == {*texts, "x", "x x", "xx", "xxx", "xxxx"}


def test_equal_requests_are_sent_once_and_kept_in_a_file(tmp_path):
    grader, cache = Grader(), str(tmp_path / "grades.sqlite")
    with served(grader) as base:
        for _ in range(2):
            assert reward(base, cache=cache)(completions=["x"] * 5 + ["xx"], prompts=["p"] * 6) == [
                0.1
            ] * 5 + [0.2]
        assert len(grader.requests) == 2
        assert reward(base, cache=cache, scale=5)(completions=["x"], prompts=["p"]) == [
            0.2
        ]  # another request
        assert reward(base, cache=cache)(completions=["x"], prompts=["q"]) == [0.1]
    assert len(grader.requests) == 4


def test_a_rubric_file_and_requests_at_a_time(tmp_path, monkeypatch):
    grader, keys = Grader(together=3), []
    (tmp_path / "rubric.md").write_text("Be strict. Use {braces}.", encoding="utf-8")
    monkeypatch.setenv("JUDGE_KEY", "secret")

    def noting(connection, path, headers, body):
        keys.append(headers.get("authorization"))
        connection.sendall(reply(grader(json.loads(body))))

    with serving(noting) as base:
        judge = build(
            "judge",
            url=f"{base}/v1/",
            model="m",
            rubric=str(tmp_path / "rubric.md"),
            concurrency=3,
            key="JUDGE_KEY",
        )
        assert judge(completions=["x" * n for n in range(1, 10)], prompts=["p"] * 9) == [
            n / 10 for n in range(1, 10)
        ]
    assert grader.most == 3 and set(keys) == {"Bearer secret"}
    assert grader.requests[0]["messages"][0]["content"].startswith("Be strict. Use {braces}.")


def test_a_busy_server_is_asked_again():
    answers = iter([reply({}, 429), reply({}, 503), reply(said("Score: 4"))])
    with serving(lambda connection, *_: connection.sendall(next(answers))) as base:
        assert reward(base)(completions=["a"], prompts=["p"]) == [0.4]


def test_hostile_completions_are_text():
    texts = hostile_completions()
    with serving(routes({"/v1/chat/completions": said("Score: 3")})) as base:
        scores = reward(base)(completions=texts, prompts=["p"] * len(texts))
    assert scores == [0.3 if text.strip() else 0.0 for text in texts]


BAD = {
    "no_grade": (reply(said("Good!")), "no grade from 0 to 10"),
    "a_scale_is_no_grade": (reply(said("Score (0 to 10): very good")), "no grade from 0 to 10"),
    "beyond": (reply(said("Score: 11")), "no grade from 0 to 10"),
    "below": (reply(said("Score: -1")), "no grade from 0 to 10"),
    "infinite": (reply(said("Score: inf")), "no grade from 0 to 10"),
    "no_text": (reply(said(None)), "no grade from 0 to 10"),
    "no_choices": (reply({"choices": []}), "no chat completion"),
    "a_list": (reply([1]), "no chat completion"),
    "deep": (reply(b"[" * 60000), "no chat completion"),
    "html": (reply(b"<html>"), "no chat completion"),
    "tokens_below_0": (
        reply({**said("Score: 5"), "usage": {"total_tokens": -5}}),
        "no chat completion",
    ),
    "wrong_key": (reply({"error": "no such key"}, 401), "status 401"),
    "moved": (reply(b"", 307, ["Location: http://127.0.0.1:1/"]), "status 307"),
    "always_busy": (reply({}, 503), "status 503"),
    "garbled": (b"SSH-2.0\r\n\r\n", "does not speak HTTP"),
    "too_long": (reply(b"x" * 2**21), "an answer of more than"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_leaves_its_row_unscored(kind):
    answer, words = BAD[kind]
    good, asked = reply(said("Score: 10")), []

    def by_text(connection, path, headers, body):
        asked.append(body)
        connection.sendall(answer if b"bad" in body else good)

    with serving(by_text) as base:
        guard = Guard(reward(base, seconds=30.0), max_failure_rate=1.0)
        assert guard(completions=["fine", "bad", ""], prompts=["p"] * 3) == [1.0, None, 0.0]
    assert words in guard.last_error and guard.failed == 1
    if words in ("no grade from 0 to 10", "no chat completion"):
        assert len(asked) == 2


@pytest.mark.parametrize(
    "answer",
    [says(b"", pause=0.05, for_ever=True), says(HEAD + b"\r\n", b" ", pause=0.01, for_ever=True)],
    ids=["silent", "drips"],
)
def test_a_server_that_hangs_takes_its_time_once(answer):
    """The rows that fail are not asked for again."""
    asked = []

    def counted(*request):
        asked.append(request)
        return answer(*request)

    with serving(counted) as base:
        guard = Guard(reward(base, seconds=1.0), max_failure_rate=1.0)
        assert guard(completions=[f"a{n}" for n in range(8)], prompts=["p"] * 8) == [None] * 8
    assert guard.failed == len(asked) == 8


def test_nobody_answers():
    guard = Guard(
        build("judge", url="http://127.0.0.1:9/v1", model="m", rubric="r", seconds=0.3),
        max_failure_rate=1.0,
    )
    assert guard(completions=["a", ""], prompts=["p", "p"]) == [None, 0.0]
    assert "127.0.0.1:9" in guard.last_error
