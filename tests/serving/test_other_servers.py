"""TRL's client with ours around it, before servers that are not vLLM or answer wrongly.

A short failure, and no completion.
"""

from __future__ import annotations

import pytest

from grpo_ext.samplers import vllm_client
from grpo_ext.samplers.vllm_client import NOTHING
from tests.support.bad_servers import WELL, choice, engine_client, reply, routes, says, serving

ASKED = {"n": 2, "max_tokens": 3, "logprobs": 0}
GOOD = [choice([5, 6], [1, 2]), choice([7], [1, 2])]


def generate(answer, seconds=60):
    """What comes of a generation of two completions by a server that is well otherwise, and the
    failure.
    """
    with serving(answer) as base:
        line = engine_client(base, seconds)
        return line.generate(prompts=[[1, 2]], **ASKED), line.failure


def test_completions_that_were_asked_for():
    found, failure = generate(routes({**WELL, "/v1/completions": {"choices": GOOD}}))
    assert failure is None and found["completion_ids"] == [[5, 6], [7]]
    assert found["logprobs"] == [[[-0.5], [-0.5]], [[-0.5]]]


WRONG = {
    "fewer": ({"choices": GOOD[:1]}, "1 completions, but 2 were requested"),
    "none": ({"choices": []}, "do not have vLLM's format"),
    "more": ({"choices": GOOD * 2}, "4 completions, but 2 were requested"),
    "no_choices": ({"status": "ok"}, "do not have vLLM's format (KeyError)"),
    "no_logps": ({"choices": [{**c, "logprobs": None} for c in GOOD]}, "log-probs are missing"),
    "other_logps": (
        {"choices": [GOOD[0], {**GOOD[1], "logprobs": GOOD[0]["logprobs"]}]},
        "log-probs of completion 1 do not match its tokens",
    ),
    "nan": ({"choices": [GOOD[0], choice([7], [1, 2], [float("nan")])]}, "logprobs.1.0.0"),
    "of_another_prompt": (
        {"choices": [choice([5], [1, 3]), choice([7], [1, 3])]},
        "completions of other prompts",
    ),
    "too_long": ({"choices": [GOOD[0], choice([7] * 4, [1, 2])]}, "at most 3"),
    "no_such_token": (
        {"choices": [GOOD[0], choice([10], [1, 2])]},
        "outside the model's vocabulary of 10",
    ),
    "a_list": ([1], "/v1/completions does not have vLLM's format"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_other_completions_never_train(kind):
    body, words = WRONG[kind]
    found, failure = generate(routes({**WELL, "/v1/completions": body}))
    assert (
        found == NOTHING
        and words in failure.message
        and failure.message.startswith("ConnectionError: ")
    )


def after(table, answer):
    """An `answer` for the paths that are not in the table."""
    known = routes(table)

    def both(connection, path, headers, body):
        (known if path.partition("?")[0] in table else answer)(connection, path, headers, body)

    return both


def test_a_generation_is_bounded_in_size(monkeypatch):
    monkeypatch.setattr(vllm_client, "MOST_BYTES", 65536)
    monkeypatch.setattr(vllm_client, "TOKEN_BYTES", 1)
    endless = says(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536, for_ever=True)
    found, failure = generate(after(WELL, endless))
    assert (
        found == NOTHING and "larger than 65,546 bytes" in failure.message
    )  # two of two tokens of prompt and three of completion


def test_a_generation_is_bounded_in_time():
    dripping = says(b"HTTP/1.1 200 OK\r\n\r\n", b" ", pause=0.05, for_ever=True)
    found, failure = generate(after(WELL, dripping), seconds=0.5)
    assert found == NOTHING and "no complete response within 0.5 s" in failure.message


@pytest.mark.parametrize(
    "answer", [says(b"\x00\xff\r\n"), says(reply(b"<html>")), says(reply({"a": 1}))]
)
def test_what_is_not_vllm_is_told_at_the_start(answer):
    with (
        serving(answer) as base,
        pytest.raises(ConnectionError, match="no vLLM server was ready at") as told,
    ):
        engine_client(base)
    assert str(told.value).isprintable() and len(str(told.value)) < 300


def test_images_that_cannot_be_processed_are_a_failure_of_the_server():
    with serving(routes(WELL)) as base:
        line = engine_client(base)
        from PIL import Image

        assert line.image_features([[Image.new("RGB", (8, 8))]]) == [None]
    assert "render" in line.failure.message
