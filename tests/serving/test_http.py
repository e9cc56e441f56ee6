"""A line to servers of every bad kind ends in one short clear error, within its bounds of time and size."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from bad_servers import reply, routes, says, serving
from forked import LIMIT

from grpo_ext.vllm.guard import Guard
from grpo_ext.vllm.http import KEY, NONCE, PROOF, VllmLine, proof, who_answers

HEAD = b"HTTP/1.1 200 OK\r\n"
MODELS = {"data": [{"id": "m"}]}
SLOW = {"pause": 0.05, "for_ever": True}  # an answer that never ends, piece by piece
FAST = {"pause": 0.0, "for_ever": True}

# what the server sends to every request, and what the error says
GARBLED = "does not speak HTTP"
LATE = "no whole answer within 0.5 s"
LONG = "more than 65,536 bytes"
ZOO = {
    "not_http": (says(b"SSH-2.0-OpenSSH_9.2\r\n\x1b[31m\x00\xff\r\n"), GARBLED),
    "random_bytes": (says(bytes(range(256)) * 40), GARBLED),
    "one_endless_line": (says(b"x" * 65536, **FAST), GARBLED),
    "a_million_headers": (says(HEAD, b"X-A: b\r\n" * 1000, **FAST), GARBLED),
    "no_such_status": (says(b"HTTP/1.1 abc OK\r\n\r\n"), GARBLED),
    "another_version": (says(b"HTTP/7.0 200 OK\r\n\r\n"), GARBLED),
    "closes_at_once": (says(), "closed connection without response"),
    "says_nothing": (says(b"", **SLOW), LATE),
    "drips_its_status": (says(b"HTTP/1.1 ", b"2", **SLOW), LATE),
    "drips_headers": (says(HEAD, b"X-A: b\r\n", **SLOW), LATE),
    "drips_its_body": (says(HEAD + b"Content-Length: 60000\r\n\r\n", b"{", **SLOW), LATE),
    "drips_chunks": (
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n{\r\n", **SLOW),
        LATE,
    ),
    "drips_without_a_length": (says(HEAD + b"Connection: close\r\n\r\n{}", b" ", **SLOW), LATE),
    "not_yet_for_ever": (says(b"HTTP/1.1 100 Continue\r\n\r\n", **SLOW), LATE),
    "endless_body": (says(HEAD + b"\r\n", b"x" * 65536, **FAST), LONG),
    "endless_chunks": (
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n" * 9999, **FAST),
        LONG,
    ),
    "claims_much": (
        says(HEAD + b"Content-Length: 9999999999999\r\n\r\n", b"x" * 65536, **FAST),
        LONG,
    ),
    "ends_early": (says(HEAD + b"Content-Length: 50\r\n\r\n{}"), "ended early"),
    "chunks_end_early": (says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}"), GARBLED),
    "unwell": (says(reply(b"", 503)), "/health answers with status 503"),
    "moved": (says(reply(b"", 307, ["Location: /health"])), "/health answers with status 307"),
    "html": (says(reply(b"<html>Welcome to nginx</html>")), "not vLLM: /version: Invalid JSON"),
    "zipped": (
        says(reply(b"\x1f\x8b\x08\x00", 200, ["Content-Encoding: gzip"])),
        "not vLLM: /version: Invalid JSON",
    ),
    "json_of_another": (
        says(reply({"status": "ok"})),
        "not vLLM: /version.version: Field required",
    ),
    "a_list": (says(reply([1, 2])), "not vLLM: /version: Input should be an object"),
    "deep": (says(reply(b"[" * 60000)), "not vLLM: /version: Invalid JSON"),
    "long_number": (says(reply(b'{"version": ' + b"9" * 60000 + b"}")), "not vLLM: /version"),
    "no_models": (
        routes({"/health": {}, "/version": {"version": "1"}, "/v1/models": {"data": []}}),
        "v1/models.data: ",
    ),
    "odd_models": (
        routes({"/health": {}, "/version": {"version": "1"}, "/v1/models": {"data": [7]}}),
        "models.data.0: ",
    ),
}


@pytest.mark.parametrize("kind", ZOO)
def test_what_answers_is_told_in_one_line(kind):
    answer, words = ZOO[kind]
    start = time.monotonic()
    with serving(answer) as base, pytest.raises(ConnectionError) as told:
        # time ends those answers alone that nothing else ends
        who_answers(VllmLine(0.5 if words == LATE else 6000.0, most=65536), base)
    message = str(told.value)
    assert words in message and message.isprintable() and len(message) < 250
    assert (
        time.monotonic() - start < LIMIT
    )  # far below the 6,000 s, or the hours that dripping would take


def test_who_answers_is_told():
    with serving(
        routes({"/health": {}, "/version": {"version": "0.31.0"}, "/v1/models": MODELS})
    ) as base:
        assert who_answers(VllmLine(10), base) == "0.31.0 with m"


def test_nobody_answers():
    with serving(says()) as base:
        pass
    with pytest.raises(ConnectionError, match="refused"):
        who_answers(VllmLine(10), base)


def test_an_errors_text_cannot_steer_a_terminal():
    with serving(says(reply(b"\x1b[2J\x07" + b"no " * 500, 500))) as base:
        text = VllmLine(10).get(f"{base}/x").text
    assert text.isprintable() and "no no no" in text and len(text) == 300


@pytest.mark.parametrize(
    "path, wrong",
    [
        ("/get_world_size", {"world_size": 10**9}),
        ("/get_world_size", {"world_size": "many"}),
        ("/weight_info", {}),
        ("/server_info", {"vllm_config": "text"}),
        ("/server_info", {"vllm_config": {"model_config": {"dtype": "float32"}}}),
        ("/v1/completions", [1]),
    ],
)
def test_fields_are_those_of_vllm(path, wrong):
    with (
        serving(routes({path: wrong})) as base,
        pytest.raises(ConnectionError, match=f"not vLLM: {path}"),
    ):
        VllmLine(10).get(base + path).json()


# ---- the key


async def plain(scope, receive, send):
    """An app that answers everything with JSON of who it is."""
    table = {"/version": {"version": "1"}, "/v1/models": MODELS}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send(
        {"type": "http.response.body", "body": json.dumps(table.get(scope["path"], {})).encode()}
    )


def through(app):
    """An `answer` that asks an ASGI app."""

    def answer(connection, path, headers, body):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "path": path,
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
        }
        asyncio.run(app(scope, None, send))
        own = [f"{name.decode()}: {value.decode()}" for name, value in sent[0]["headers"]]
        connection.sendall(reply(sent[1]["body"], sent[0]["status"], own))

    return answer


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    guard = Guard(plain)
    monkeypatch.delenv(KEY)  # those who ask say which key they have
    with serving(through(guard)) as base:
        yield base


def test_a_guarded_server_answers_those_with_its_key(guarded):
    assert who_answers(VllmLine(10, key="secret"), guarded) == "1 with m"


@pytest.mark.parametrize(
    "path",
    ["/update_weights", "/collective_rpc", "/v1/load_lora_adapter", "/server_info", "/metrics"],
)
def test_a_guarded_server_refuses_all_others(guarded, path):
    answer = VllmLine(10).post(guarded + path, json={})
    assert answer.status_code == 401 and KEY in answer.text
    with pytest.raises(ConnectionError, match="does not have the key"):
        VllmLine(10, key="guess").post(guarded + path, json={})


def test_without_the_key_one_is_told_to_set_it(guarded):
    with pytest.raises(ConnectionError, match=f"status 401: set {KEY}"):
        who_answers(VllmLine(10), guarded)


def test_the_key_is_not_told_to_a_server_that_cannot_prove_it():
    """One that has heard a proof before cannot say it again: each request has another nonce."""
    heard = []

    def answer(connection, path, headers, body):
        heard.append(headers)
        connection.sendall(
            reply(
                {"version": "1", **MODELS},
                200,
                [f"{PROOF}: {proof('secret', 'an earlier nonce').decode()}"],
            )
        )

    with serving(answer) as base, pytest.raises(ConnectionError, match="does not have the key"):
        who_answers(VllmLine(10, key="secret"), base)
    assert (
        len(heard) == 1
        and NONCE in heard[0]
        and not any("secret" in value for value in heard[0].values())
    )
