"""A line to servers of every bad kind ends in one short clear error, within its bounds of time and
size.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from grpo_ext.common.http import Answer, target_of
from grpo_ext.vllm import guard as guard_module
from grpo_ext.vllm import http as http_module
from grpo_ext.vllm import signature as signature_module
from grpo_ext.vllm.guard import Guard
from grpo_ext.vllm.http import VllmLine, who_answers
from grpo_ext.vllm.signature import KEY, PROOF, SIGNATURE, WINDOW, Signature, proof_of
from tests.support.bad_servers import ask_app, reply, routes, says, serving
from tests.support.forked import LIMIT

HEAD = b"HTTP/1.1 200 OK\r\n"
MODELS = {"data": [{"id": "m"}]}
SLOW = {"pause": 0.05, "for_ever": True}  # an answer that never ends, piece by piece
FAST = {"pause": 0.0, "for_ever": True}

# what the server sends to every request, and what the error says
GARBLED = "does not speak HTTP"
LATE = "no complete response within 0.5 s"
LONG = "larger than 65,536 bytes"
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
    "a_chunk_of_less_than_nothing": (
        says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", b"x" * 65536, **FAST),
        GARBLED,
    ),
    "claims_much": (
        says(HEAD + b"Content-Length: 9999999999999\r\n\r\n", b"x" * 65536, **FAST),
        LONG,
    ),
    "ends_early": (says(HEAD + b"Content-Length: 50\r\n\r\n{}"), "ended early"),
    "chunks_end_early": (says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}"), GARBLED),
    "unwell": (says(reply(b"", 503)), "/health returned status 503"),
    "moved": (says(reply(b"", 307, ["Location: /health"])), "/health returned status 307"),
    "html": (
        says(reply(b"<html>Welcome to nginx</html>")),
        "/version does not have vLLM's format (Invalid JSON",
    ),
    "zipped": (
        says(reply(b"\x1f\x8b\x08\x00", 200, ["Content-Encoding: gzip"])),
        "/version does not have vLLM's format (Invalid JSON",
    ),
    "json_of_another": (
        says(reply({"status": "ok"})),
        "/version does not have vLLM's format (version: Field required",
    ),
    "a_list": (
        says(reply([1, 2])),
        "/version does not have vLLM's format (Input should be a valid dictionary",
    ),
    "deep": (says(reply(b"[" * 60000)), "/version does not have vLLM's format (Invalid JSON"),
    "long_number": (
        says(reply(b'{"version": ' + b"9" * 60000 + b"}")),
        "/version does not have vLLM's format",
    ),
    "no_models": (
        routes({"/health": {}, "/version": {"version": "1"}, "/v1/models": {"data": []}}),
        "v1/models does not have vLLM's format (data: ",
    ),
    "odd_models": (
        routes({"/health": {}, "/version": {"version": "1"}, "/v1/models": {"data": [7]}}),
        "models does not have vLLM's format (data.0: ",
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


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://a:b/", "a:b"),
        ("127.0.0.1:8000", "does not begin with http:// or https://"),
        ("ftp://a/b", "does not begin with http:// or https://"),
        ("http://a b/c", "contains a space or a control character"),
    ],
)
def test_what_is_no_url_is_a_connection_error(url, message):
    with pytest.raises(ConnectionError, match=message):
        VllmLine(10).get(url)


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


def test_a_key_of_a_response_cannot_steer_a_terminal():
    answer = Answer("/x", 200, b'{"\\u001b[2J\\nno": "text"}', {})
    with pytest.raises(ValueError, match="no") as raised:
        answer.read_as(dict[str, int])
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://host:80/v1?a=1", "/v1?a=1"),
        ("HTTP://HOST/v1", "/v1"),
        ("http://host", "/"),
        ("http://host?a=1#part", "/?a=1"),
    ],
)
def test_a_request_names_the_path_and_the_query(url, target):
    assert target_of(url) == target


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
        pytest.raises(ConnectionError, match=f"{path} does not have vLLM's format"),
    ):
        VllmLine(10).get(base + path).json()


# ---- the key


class Plain:
    """An app that answers everything with JSON, and keeps the requests that reach it with their
    bodies.
    """

    def __init__(self):
        self.reached = []

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.reached.append((scope["path"], dict(scope["headers"]), body))
        table = {"/version": {"version": "1"}, "/v1/models": MODELS}
        answer = json.dumps(table.get(scope["path"], {})).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (answer[:5], answer[5:]):
            more = piece == answer[:5]
            await send({"type": "http.response.body", "body": piece, "more_body": more})


def through(app):
    """An `answer` that asks an ASGI app."""

    def answer(connection, path, headers, body):
        status, named, whole = ask_app(app, headers.pop(":method"), path, headers, body)
        connection.sendall(reply(whole, status, [f"{k}: {v}" for k, v in named.items()]))

    return answer


def guard_with(key, monkeypatch):
    """A guard with this key around an app of its own; those who ask say which key they have."""
    monkeypatch.setenv(KEY, key)
    guard = Guard(Plain())
    monkeypatch.delenv(KEY)
    return guard


@pytest.fixture
def guard(monkeypatch):
    return guard_with("secret", monkeypatch)


@pytest.fixture
def guarded(guard):
    with serving(through(guard)) as base:
        yield base


def test_a_guarded_server_answers_those_with_its_key(guarded, guard):
    line = VllmLine(10, key="secret")
    assert who_answers(line, guarded) == "1 with m"
    assert line.post(f"{guarded}/update_weights", json={"a": "b" * 1000}).status_code == 200
    assert line.get(f"{guarded}/server_info", params={"config_format": "json"}).status_code == 200
    _, headers, body = guard.app.reached[3]
    assert json.loads(body) == {"a": "b" * 1000}
    assert headers[b"authorization"] == b"Bearer secret"  # for vLLM's own check of /v1


@pytest.mark.parametrize(
    "path",
    ["/update_weights", "/collective_rpc", "/v1/load_lora_adapter", "/server_info", "/metrics"],
)
def test_a_guarded_server_refuses_all_others(guarded, guard, path):
    answer = VllmLine(10, key=None).post(guarded + path, json={})
    assert answer.status_code == 401 and KEY in answer.text
    bearer = VllmLine(10, key=None, headers={"Authorization": "Bearer secret"})
    assert bearer.post(guarded + path, json={}).status_code == 401
    with pytest.raises(ConnectionError, match="does not have the key"):
        VllmLine(10, key="guess").post(guarded + path, json={})
    assert not guard.app.reached


def test_without_the_key_one_is_told_to_set_it(guarded):
    with pytest.raises(ConnectionError, match=f"status 401. Set {KEY}"):
        who_answers(VllmLine(10, key=None), guarded)


# what a request is changed to on its way: (method, target, body)
CHANGED = {
    "method": ("PUT", "/update_weights?a=1", b"{}"),
    "path": ("POST", "/collective_rpc?a=1", b"{}"),
    "query": ("POST", "/update_weights?a=2", b"{}"),
    "no_query": ("POST", "/update_weights", b"{}"),
    "body": ("POST", "/update_weights?a=1", b"[]"),
    "longer_body": ("POST", "/update_weights?a=1", b"{}" + b" " * 10**5),
    "shorter_body": ("POST", "/update_weights?a=1", b"{"),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_signature_is_of_one_request(guard, kind):
    signed = ("POST", "/update_weights?a=1", b"{}")
    headers = {SIGNATURE: str(Signature.of("secret", *signed))}
    method, target, body = CHANGED[kind]
    status, answered, _ = ask_app(guard, method, target, headers, body)
    assert status == 401 and PROOF not in answered and not guard.app.reached
    fresh = {SIGNATURE: str(Signature.of("secret", *signed))}
    assert ask_app(guard, signed[0], signed[1], fresh, signed[2])[0] == 200


def test_a_request_is_answered_once(guard):
    headers = {SIGNATURE: str(Signature.of("secret", "POST", "/update_weights", b"{}"))}
    said = [ask_app(guard, "POST", "/update_weights", headers, b"{}")[0] for _ in range(3)]
    assert said == [200, 401, 401]


@pytest.mark.parametrize(
    ("started", "signed", "status"),
    [
        (-9999, -WINDOW + 5, 200),
        (-9999, WINDOW - 5, 200),
        (-9999, -WINDOW - 5, 401),
        (-9999, WINDOW + 5, 401),
        (0, -5, 401),
        (-10, -5, 200),
    ],
)
def test_a_request_is_of_now_and_of_this_server(guard, monkeypatch, started, signed, status):
    """Seconds beside now. What was recorded before a restart cannot be sent to the new server."""
    now = time.time()
    monkeypatch.setattr(guard_module.time, "time", lambda: now + signed)
    headers = {SIGNATURE: str(Signature.of("secret", "GET", "/version", b""))}
    monkeypatch.setattr(guard_module.time, "time", lambda: now)
    guard.started = now + started
    assert ask_app(guard, "GET", "/version", headers, b"")[0] == status


@pytest.mark.parametrize(
    ("ahead", "up_for", "words"),
    [
        (
            42,
            0,
            "signed before its start, and its clock differs by +42 s from the clock of this "
            "machine. Synchronize the clocks, or wait 42 s",
        ),
        (42, 30, "or wait 12 s"),
        (400, 9999, "by +400 s from the clock of this machine, but may differ by at most 300 s"),
        (-400, 9999, "by -400 s from the clock of this machine, but may differ by at most 300 s"),
    ],
)
def test_clocks_that_differ_are_told(guarded, guard, monkeypatch, ahead, up_for, words):
    """By the server that has the key, on every path, with the difference."""
    now = int(time.time())
    trainers = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr(signature_module, "time", trainers)
    monkeypatch.setattr(http_module, "time", trainers)
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(time=lambda: now + ahead))
    guard.started = now + ahead - up_for
    with pytest.raises(ConnectionError, match=re.escape(words)):
        who_answers(VllmLine(10, key="secret"), guarded)
    with pytest.raises(ConnectionError, match=re.escape(words)):
        VllmLine(10, key="secret").post(f"{guarded}/update_weights", json={})
    with pytest.raises(ConnectionError, match="does not have the key"):
        VllmLine(10, key="guess").post(f"{guarded}/update_weights", json={})
    assert not [path for path, _, body in guard.app.reached if path != "/health"]


def test_a_clock_is_believed_only_with_a_proof(guard):
    told = json.dumps({"server_clock": 7, "server_started": 7}).encode()
    with serving(says(reply(told, 401))) as base, pytest.raises(ConnectionError) as error:
        VllmLine(10, key="secret").post(f"{base}/update_weights", json={})
    assert "does not have the key" in str(error.value) and "clock" not in str(error.value)


def test_a_name_that_is_looked_up_for_ever_takes_its_time_once(monkeypatch):
    """The system's look-up has no limit of its own."""
    answered = threading.Event()
    look_up = socket.getaddrinfo

    def waits(*args, **options):
        assert answered.wait(LIMIT)
        return look_up(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", waits)
    with pytest.raises(ConnectionError, match=r"127.0.0.1:9: no connection within 0.2 s"):
        VllmLine(0.2).get("http://127.0.0.1:9/health")
    assert not answered.is_set()
    answered.set()


def test_a_connection_that_comes_too_late_is_closed(monkeypatch):
    late = threading.Event()
    look_up = socket.getaddrinfo

    def waits(*args, **options):
        assert late.wait(LIMIT)
        return look_up(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", waits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(ConnectionError, match="no connection within"):
            VllmLine(0.2).get(url)
        late.set()
        listener.settimeout(LIMIT)
        connection = listener.accept()[0]
        with connection:
            connection.settimeout(LIMIT)
            assert connection.recv(1) == b""  # closed, and nothing was sent


def test_a_handshake_without_an_end_is_hung_up():
    """TLS of which one byte comes at a time: the connection ends with the request."""
    closed = threading.Event()

    def drips(listener):
        connection = listener.accept()[0]
        with connection, suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x3f\xff")
            while True:
                connection.sendall(b"\x00")
                time.sleep(0.01)
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drips, args=(listener,), daemon=True).start()
        with pytest.raises(ConnectionError, match=r"no complete response within 0\.3 s"):
            VllmLine(0.3).get(f"https://127.0.0.1:{listener.getsockname()[1]}/x")
        assert closed.wait(LIMIT)


def test_an_answer_that_is_given_up_is_hung_up():
    """Also while somebody keeps its error."""
    closed = threading.Event()

    def floods(connection, *_):
        with suppress(OSError):
            connection.sendall(HEAD + b"\r\n")
            while True:
                connection.sendall(b"x" * 65536)
        closed.set()

    with serving(floods) as base, pytest.raises(ConnectionError, match=LONG) as told:
        VllmLine(6000.0, most=65536).get(f"{base}/x")
    assert closed.wait(LIMIT) and told.value is not None


def test_used_signatures_are_forgotten_when_they_are_too_old(guard, monkeypatch):
    now = time.time()
    for number in range(5):
        later = now + number * 3 * WINDOW
        monkeypatch.setattr(guard_module.time, "time", lambda later=later: later)
        headers = {SIGNATURE: str(Signature.of("secret", "GET", "/version", b""))}
        assert ask_app(guard, "GET", "/version", headers, b"")[0] == 200
    assert len(guard.nonces) == len(guard.ends) == 1


@pytest.mark.parametrize(
    "header",
    ["", "x", "1 2 3 4 5", "9" * 5000, f"1 {'a' * 32} 2 {'b' * 64} {'c' * 64}", "\x00", "é"],
)
def test_what_is_no_signature_is_refused(guard, header):
    status, answered, _ = ask_app(guard, "GET", "/version", {SIGNATURE: header}, b"")
    assert status == 401 and PROOF not in answered


def test_health_is_open_but_proves_nothing_to_strangers(guard):
    status, answered, _ = ask_app(guard, "GET", "/health", {}, b"")
    assert status == 200 and PROOF not in answered
    forged = {SIGNATURE: str(Signature.of("guess", "GET", "/health", b""))}
    status, answered, _ = ask_app(guard, "GET", "/health", forged, b"")
    assert status == 200 and PROOF not in answered


def test_web_sockets_are_refused(guard):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(guard({"type": "websocket", "path": "/v1/realtime"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}] and not guard.app.reached


@pytest.mark.parametrize("whole", [True, False])
def test_an_app_that_fails(monkeypatch, whole):
    """Its error is proved; a part of an answer is not sent at all."""
    guard = guard_with("secret", monkeypatch)

    async def fails(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": not whole})
        raise RuntimeError("failed")

    guard.app = fails
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    signature = Signature.of("secret", "GET", "/x", b"")
    header = (SIGNATURE.encode(), str(signature).encode())
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "headers": [header],
    }
    with pytest.raises(RuntimeError, match="failed"):
        asyncio.run(guard(scope, receive, send))
    proof = (PROOF.encode(), proof_of("secret", signature, 500, b"part").encode())
    assert [m["type"] for m in sent] == (
        ["http.response.start", "http.response.body"] if whole else []
    )
    assert not whole or proof in sent[0]["headers"]


# ---- engines that lie, with a key in the environment


class Liar:
    """A server that took the port of another.

    It hears everything, and reaches the real server of the same key.
    """

    def __init__(self, lie, guard):
        self.lie = lie
        self.guard = guard
        self.heard = []
        self.recorded = []  # answers of the real server, with proofs

    def __call__(self, connection, path, headers, body):
        self.heard.append((path, dict(headers), body))
        connection.sendall(self.lie(self, headers.pop(":method"), path, headers, body))

    def real(self, method, path, headers, body):
        """The answer of the real server, as bytes."""
        status, named, said = ask_app(self.guard, method, path, headers, body)
        self.recorded.append((status, named, said))
        return said, status, [f"{name}: {value}" for name, value in named.items()]


def bluff(liar, method, path, headers, body):
    return reply({"version": "1", **MODELS})


def own_proof(liar, method, path, headers, body):
    answer = json.dumps({"version": "1", **MODELS}).encode()
    signature = Signature.parse(headers[SIGNATURE])
    return reply(answer, 200, [f"{PROOF}: {proof_of('guess', signature, 200, answer)}"])


def echoed_proof(liar, method, path, headers, body):
    """What the request itself has: its mac, as if it were a proof."""
    return reply({"version": "1", **MODELS}, 200, [f"{PROOF}: {headers[SIGNATURE].split()[-1]}"])


def proof_of_open_health(liar, method, path, headers, body):
    """The real server's /health answers everyone; its headers beside another body."""
    headers = {SIGNATURE: headers[SIGNATURE]}
    _, _, lines = liar.real("GET", "/health", headers, b"")
    return reply({"version": "1", **MODELS}, 200, lines)


def first_proof_again(liar, method, path, headers, body):
    """The first answer of the real server, to each later request."""
    if not liar.recorded:
        return reply(*liar.real(method, path, headers, body))
    status, named, said = liar.recorded[0]
    return reply(said, status, [f"{name}: {value}" for name, value in named.items()])


def other_body(liar, method, path, headers, body):
    said, status, lines = liar.real(method, path, headers, body)
    return reply(said.replace(b"1", b"2") + b" ", status, lines)


def other_status(liar, method, path, headers, body):
    said, _, lines = liar.real(method, path, headers, body)
    return reply(said, 404, lines)


def other_request(liar, method, path, headers, body):
    """A request of the liar's own, with the signature that it heard."""
    return reply(*liar.real("POST", "/update_weights", headers, b"[]"))


def twice(liar, method, path, headers, body):
    """The request once for the trainer, thrown away, and once for the liar."""
    liar.real(method, path, headers, body)
    return reply(*liar.real(method, path, headers, body))


def redirect(liar, method, path, headers, body):
    return reply(b"", 307, [f"Location: http://{headers['host']}/elsewhere"])


def asks_for_the_key(liar, method, path, headers, body):
    return reply(b"", 401, ["WWW-Authenticate: Bearer", "Connection: close"])


def no_proof_header(liar, method, path, headers, body):
    said, status, lines = liar.real(method, path, headers, body)
    return reply(said, status, [line for line in lines if PROOF not in line])


LIES = (
    bluff,
    own_proof,
    echoed_proof,
    proof_of_open_health,
    first_proof_again,
    other_body,
    other_status,
    other_request,
    twice,
    redirect,
    asks_for_the_key,
    no_proof_header,
)


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_engine_learns_no_key_and_is_not_believed(lie, guard, monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    liar = Liar(lie, guard)
    with serving(liar) as base:
        with pytest.raises(ConnectionError, match="does not have the key") as told:
            who_answers(VllmLine(10), base)
        # a server that took the port in mid-run, which hears no probe first
        with pytest.raises(ConnectionError, match="does not have the key"):
            for _ in range(2):  # the first answer may be one that is passed on unchanged
                VllmLine(10).post(f"{base}/v1/completions", json={"prompt": [1]})
    assert "secret" not in str(told.value)
    assert "/elsewhere" not in str(liar.heard)
    for _, headers, body in liar.heard:
        assert "authorization" not in headers
        assert "secret" not in f"{headers} {body}" and "sk-other" not in f"{headers} {body}"
    assert all(body != b"[]" for _, _, body in guard.app.reached)


def test_a_server_of_another_key_is_not_believed(monkeypatch):
    other = guard_with("other", monkeypatch)
    wrong = pytest.raises(ConnectionError, match="does not have the key")
    with serving(through(other)) as base, wrong:
        who_answers(VllmLine(10, key="secret"), base)


HOSTILE = ["m\nx", "m\x1b[2J", "m" * 201, "", "m m", "\u2028"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("which", ["version", "model"])
def test_names_of_a_server_are_plain_words(name, which):
    table = {
        "/health": {},
        "/version": {"version": name if which == "version" else "1"},
        "/v1/models": {"data": [{"id": name if which == "model" else "m"}]},
    }
    with serving(routes(table)) as base, pytest.raises(ConnectionError) as told:
        who_answers(VllmLine(10, key=None), base)
    assert "the response to /v" in str(told.value) and str(told.value).isprintable()
