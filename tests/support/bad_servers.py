"""Servers that are not vLLM, or no longer well.

Real sockets at 127.0.0.1, whose every answer a function sends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager, suppress
from unittest.mock import patch


@contextmanager
def serving(answer):
    """`answer(connection, path, headers, body)` sends what it likes, in a thread for each request;
    yields the base URL.

    `headers` has names in lower case, and the method as `:method`.
    """
    ended = threading.Event()

    def serve(connection):
        with connection, suppress(OSError), connection.makefile("rb") as reader:
            method, path = reader.readline().decode().split()[:2]
            headers = {":method": method}
            while line := reader.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            answer(connection, path, headers, reader.read(int(headers.get("content-length", 0))))

    def accept(listener):
        while not ended.is_set():
            with suppress(TimeoutError):
                connection = listener.accept()[0]
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def reply(body, status=200, headers=()):
    """The bytes of an answer; an object becomes JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} word", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(*pieces, pause=0.0, for_ever=False):
    """An `answer` that sends these pieces of bytes, the last again and again if `for_ever`,
    whatever it is asked.
    """
    gap = threading.Event()

    def answer(connection, *_):
        for piece in pieces:
            connection.sendall(piece)
        while for_ever:
            gap.wait(pause)
            connection.sendall(pieces[-1])

    return answer


def routes(table, otherwise=None):
    """An `answer` by path: objects of JSON, or functions of the request's own object.

    404 for the rest.
    """

    def answer(connection, path, headers, body):
        found = table.get(path.partition("?")[0], otherwise)
        if callable(found):
            found = found(json.loads(body) if body else None)
        connection.sendall(reply({}, 404) if found is None else reply(found))

    return answer


def ask_app(app, method, target, headers, body):
    """Ask an ASGI app; return status, headers and body of its answer."""
    sent = []
    pieces = [body[i : i + 100] for i in range(0, len(body), 100)] or [b""]

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(app(scope, receive, send))
    named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], named, b"".join(message["body"] for message in sent[1:])


WELL = {"/health": {}, "/version": {"version": "0.31.0"}, "/v1/models": {"data": [{"id": "m"}]}}


def choice(tokens, prompt, logps=None):
    """One completion in the form of vLLM's /v1/completions."""
    names = [f"token_id:{token}" for token in tokens]
    logps = [-0.5] * len(tokens) if logps is None else logps
    tops = [{name: p} for name, p in zip(names, logps, strict=True)]
    told = {"tokens": names, "token_logprobs": logps, "top_logprobs": tops}
    return {"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": told}


def engine_client(base, seconds=60, vocabulary=10, **options):
    """The trainer's client of the server at `base`.

    It uses nothing of vLLM; TRL asks whether vLLM is installed.
    """
    from grpo_ext.samplers.vllm_client import ServerClient

    with patch("trl.generation.vllm_client.is_vllm_available", return_value=True):
        return ServerClient(
            base_url=base, request_timeout=seconds, vocabulary=vocabulary, **options
        )
