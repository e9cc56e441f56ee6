"""Middleware for vLLM's `--middleware` that guards all routes of a server with its key.

vLLM's own key guards only `/v1`, and not the routes that take weights, return settings and call functions of the workers.
"""

import hmac
import os
from typing import Any

from grpo_ext.vllm.http import KEY, NONCE, PROOF, proof


class Guard:
    """Answers requests without the key with status 401, except `/health`, and proves in each answer that it has the key."""

    def __init__(self, app: Any):
        self.app, self.key = app, os.environ[KEY]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":  # vLLM's own key guards its web sockets
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        known = hmac.compare_digest(
            headers.get(b"authorization", b""), f"Bearer {self.key}".encode()
        )
        own = (PROOF.encode(), proof(self.key, headers.get(NONCE.encode(), b"").decode("latin-1")))

        async def proven(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], own]}
            await send(message)

        if known or scope["path"] == "/health":
            await self.app(scope, receive, proven)
        else:
            kind = (b"content-type", b"text/plain")
            await proven({"type": "http.response.start", "status": 401, "headers": [kind]})
            await send(
                {
                    "type": "http.response.body",
                    "body": f"set {KEY} to the key of this server".encode(),
                }
            )
