"""Middleware for vLLM's option `--middleware` that accepts only requests signed with the API key.

vLLM itself checks the key only for the routes under `/v1`, not for those that receive weights,
return settings or call functions of the workers.
"""

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from grpo_ext.vllm.signature import KEY, PROOF, SIGNATURE, WINDOW, Signature, proof_of

# ASGI types
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """ASGI middleware that passes only signed requests to an app, and adds a proof to responses.

    Requests must be signed with the key in `VLLM_API_KEY`. All others, including replayed and
    outdated ones, get status 401. As an exception, `/health` also answers unsigned requests, but
    without a proof. WebSockets are closed, because their content is not signed. The response to a
    signed request is sent only when it is complete.

    Args:
        app: the ASGI app to protect.

    Raises:
        KeyError: if `VLLM_API_KEY` is not set in the environment.
    """

    def __init__(self, app: App):
        self.app = app
        self.key = os.environ[KEY]
        # older requests are rejected, so that requests from before a restart cannot be replayed
        self.started = int(time.time())
        self.nonces: set[str] = set()
        self.ends: deque[tuple[float, str]] = deque()  # when each nonce can be forgotten

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":  # startup and shutdown of the server
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
        earliest = max(self.started, now - WINDOW)
        if not earliest <= signature.seconds <= now + WINDOW:
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

    def signature_of(self, scope: Scope) -> Signature | None:
        """Return a request's signature, or `None` if it is missing, malformed or invalid."""
        header = dict(scope["headers"]).get(SIGNATURE.encode(), b"")
        signature = Signature.parse(header.decode("latin-1"))
        target = scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        if query:
            target += f"?{query}"
        if signature is None or not signature.signs(self.key, scope["method"], target):
            return None
        return signature

    def is_first_use(self, signature: Signature, now: float) -> bool:
        """Return whether a signature has not been used before, and remember it.

        Args:
            signature: the signature of a request.
            now: the server's clock, in seconds since 1970. Signatures that are too old to be
                accepted at this time are forgotten.
        """
        while self.ends and self.ends[0][0] < now:
            _, expired_nonce = self.ends.popleft()
            self.nonces.remove(expired_nonce)
        if signature.nonce in self.nonces:
            return False
        self.nonces.add(signature.nonce)
        end = now + 2 * WINDOW + 1
        self.ends.append((end, signature.nonce))
        return True

    async def refuse_time(self, send: Send, signature: Signature, now: int) -> None:
        """Respond with status 401 and the server's clock to a signed request with a wrong time.

        The signature of the request must be valid. The response has a proof, so the trainer can
        trust the clock. The proof is valid only for this request, so an attacker who has replayed
        an old request cannot use it for others.

        Args:
            send: the ASGI function that sends the response.
            signature: the signature of the request.
            now: the server's clock, in seconds since 1970.
        """
        clock = {"server_clock": now, "server_started": self.started}
        body = json.dumps(clock).encode()
        headers = [(b"content-type", b"application/json")]
        answer = Buffered(send)
        await answer({"type": "http.response.start", "status": 401, "headers": headers})
        await answer({"type": "http.response.body", "body": body})
        await answer.flush(self.key, signature)


class Buffered:
    """An ASGI `send` that collects an app's response; `flush` sends the response with its proof.

    Args:
        send: the ASGI function with which `flush` sends the response.
    """

    def __init__(self, send: Send):
        self.send = send
        self.start: Message = {}
        self.chunks: list[bytes] = []
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.chunks.append(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)

    async def flush(self, key: str, signature: Signature) -> None:
        """Send the response and its proof.

        Send nothing if the response is incomplete, which happens if the client left or the app
        failed.

        Args:
            key: the key that trainer and server share.
            signature: the signature of the request.
        """
        if not self.is_complete:
            return
        body = b"".join(self.chunks)
        proof = proof_of(key, signature, self.start["status"], body)
        headers = list(self.start.get("headers", ()))
        headers.append((PROOF.encode(), proof.encode()))
        await self.send({**self.start, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


async def body_of(receive: Receive, signature: Signature) -> bytes | None:
    """Read the body of a request, and check that it is the body that was signed.

    Return `None` if another body was signed, or if the client disconnects. Reading stops as soon as
    the body exceeds the size in `signature`.
    """
    chunks = []
    size = 0
    is_complete = False
    while not is_complete:
        message = await receive()
        if message["type"] != "http.request":  # the client has disconnected
            return None
        chunk = message.get("body", b"")
        chunks.append(chunk)
        size += len(chunk)
        if size > signature.size:
            return None
        is_complete = not message.get("more_body", False)
    body = b"".join(chunks)
    if hashlib.sha256(body).hexdigest() != signature.body:
        return None
    return body


def with_body(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI `receive` that first returns `body`, then the messages from `receive`."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        if messages:
            return messages.pop()
        return await receive()

    return receive_again


def with_key(scope: Scope, key: str) -> Scope:
    """Return a copy of an ASGI scope with the key in the header that vLLM checks for `/v1`."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    headers.append((b"authorization", f"Bearer {key}".encode()))
    return {**scope, "headers": headers}


async def refuse(send: Send) -> None:
    """Respond with status 401 to a request without a valid, unused signature."""
    headers = [(b"content-type", b"text/plain")]
    text = f"this request has no valid, unused signature. Set {KEY} to the key of this server"
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
