"""Middleware for vLLM's `--middleware` that guards all routes of a server with its key.

vLLM's own key guards only `/v1`, and not the routes that take weights, return settings and call
functions of the workers.
"""

import hashlib
import json
import os
import time
from collections import deque
from typing import Any

from grpo_ext.vllm.signature import KEY, PROOF, SIGNATURE, WINDOW, Signature, proof_of


class Guard:
    """Answers each request signed with the key once, and proves its answers with the key.

    Other requests get status 401, except `/health`, which is answered without a proof. Web sockets
    are refused, because nothing signs what they carry. Answers are sent when they are whole.
    """

    def __init__(self, app: Any):
        self.app = app
        self.key = os.environ[KEY]
        # a request that was recorded before a restart is older, so it cannot be sent to the new
        # server
        self.started = int(time.time())
        self.nonces: set[str] = set()
        self.ends: deque[tuple[float, str]] = deque()  # when each nonce can be forgotten

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":  # start and end of the server
            await self.app(scope, receive, send)
            return
        signature = self.signature_of(scope)
        if signature is None:
            if scope["path"] == "/health":
                await self.app(scope, receive, send)
            else:
                await refuse(send)
            return
        now = time.time()
        if not max(self.started, now - WINDOW) <= signature.seconds <= now + WINDOW:
            await self.refuse_time(send, signature, int(now))
            return
        if not self.is_first_use(signature, now):
            await refuse(send)
            return
        body = await body_of(receive, signature)
        if body is None:
            await refuse(send)
            return
        answer = Buffered(send)
        try:
            await self.app(with_key(scope, self.key), with_body(body, receive), answer)
        finally:  # vLLM answers with status 500 before it raises
            await answer.flush(self.key, signature)

    def signature_of(self, scope: Any) -> Signature | None:
        """Return the signature of a request; `None` if the key did not make it."""
        header = dict(scope["headers"]).get(SIGNATURE.encode(), b"")
        signature = Signature.parse(header.decode("latin-1"))
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        if signature is None or not signature.signs(self.key, scope["method"], target):
            return None
        return signature

    def is_first_use(self, signature: Signature, now: float) -> bool:
        """Return whether a signature is new, and remember it for as long as it could be accepted."""
        while self.ends and self.ends[0][0] < now:
            self.nonces.remove(self.ends.popleft()[1])
        if signature.nonce in self.nonces:
            return False
        self.nonces.add(signature.nonce)
        self.ends.append((now + 2 * WINDOW + 1, signature.nonce))
        return True

    async def refuse_time(self, send: Any, signature: Signature, now: int) -> None:
        """Answer a request of the key's owner that is not of now with the server's clock.

        The proof lets the trainer trust the clock. Whoever sends an old request again gets a proof
        that no later request accepts.
        """
        body = json.dumps({"server_clock": now, "server_started": self.started}).encode()
        kind = (b"content-type", b"application/json")
        answer = Buffered(send)
        await answer({"type": "http.response.start", "status": 401, "headers": [kind]})
        await answer({"type": "http.response.body", "body": body})
        await answer.flush(self.key, signature)


class Buffered:
    """Takes what an app sends, and sends it with its proof once it is whole."""

    def __init__(self, send: Any):
        self.send = send
        self.start: Any = None
        self.pieces: list[bytes] = []
        self.whole = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.pieces.append(message.get("body", b""))
            self.whole = not message.get("more_body", False)

    async def flush(self, key: str, signature: Signature) -> None:
        """Send the answer if it is whole: not if the client has gone or the app failed."""
        if not self.whole:
            return
        body = b"".join(self.pieces)
        proof = proof_of(key, signature, self.start["status"], body)
        headers = [*self.start.get("headers", ()), (PROOF.encode(), proof.encode())]
        await self.send({**self.start, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


async def body_of(receive: Any, signature: Signature) -> bytes | None:
    """Return the body of a request, read up to its signed length; `None` if another was signed."""
    pieces = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":  # the client has gone
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > signature.size:
            return None
        more = message.get("more_body", False)
    body = b"".join(pieces)
    return body if hashlib.sha256(body).hexdigest() == signature.body else None


def with_body(body: bytes, receive: Any) -> Any:
    """Return a `receive` that gives the whole body first, and then what the connection says."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Any:
        return waiting.pop() if waiting else await receive()

    return receive_again


def with_key(scope: Any, key: str) -> Any:
    """Return the scope of a request with the key as vLLM's own check of `/v1` expects it."""
    others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    return {**scope, "headers": [*others, (b"authorization", f"Bearer {key}".encode())]}


async def refuse(send: Any) -> None:
    """Answer a request without a valid signature."""
    kind = (b"content-type", b"text/plain")
    text = f"sign requests with the key of this server: set {KEY}, and compare the clocks"
    await send({"type": "http.response.start", "status": 401, "headers": [kind]})
    await send({"type": "http.response.body", "body": text.encode()})
