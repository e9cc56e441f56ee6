"""HTTP requests to a server that may not be vLLM, with limits on the time, the size and the form of each answer.

`Line` replaces the `requests.Session` of TRL's client, which limits only the time of a single read from the socket, and so
waits forever for a server that sends byte by byte.
"""

import hashlib
import hmac
import json as jsons
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

KEY = "VLLM_API_KEY"  # environment variable of vLLM with the key that trainers and server share
NONCE, PROOF = "x-grpo-ext-nonce", "x-grpo-ext-proof"
PROBE_SECONDS = 5.0  # time limit of a health check
MOST_BYTES = 16 * 2**20  # size limit of an answer, except generations


def shape(**fields: Any) -> Any:
    """Return the type of a JSON object with at least these fields."""
    return TypedDict("Shape", fields)  # type: ignore[operator]  # made at run time


MODEL = shape(dtype=str, logprobs_mode=str, max_model_len=int)
TRANSFER, LORA = shape(backend=str) | None, shape(max_lora_rank=int) | None
SHAPES = {
    "/version": shape(version=str),
    "/v1/models": shape(data=Annotated[list[shape(id=str)], Field(min_length=1)]),  # type: ignore[misc]  # a call
    "/server_info": shape(vllm_config=shape(model_config=MODEL, weight_transfer_config=TRANSFER, lora_config=LORA)),
    "/get_world_size": shape(world_size=Annotated[int, Field(ge=1, le=2**16)]),
    "/weight_info": shape(weight_version=str | None),
}


@dataclass(frozen=True)
class Answer:
    """The answer of a server, with the attributes of `requests.Response` that TRL reads."""

    path: str
    status_code: int
    body: bytes

    @property
    def text(self) -> str:
        """The beginning of the answer, without control characters."""
        return "".join(c if c.isprintable() else " " for c in self.body[:300].decode("utf-8", errors="replace"))

    def json(self) -> Any:
        """Return the object in the answer; `ConnectionError` if it does not have vLLM's form."""
        kind = next((kind for path, kind in SHAPES.items() if self.path.endswith(path)), dict[str, Any])
        try:
            return TypeAdapter(kind).validate_json(self.body)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, (self.path, *wrong["loc"])))
            raise ConnectionError(f"what answers is not vLLM: {where}: {wrong['msg'][:100]}") from None


@dataclass
class Line:
    """A client that keeps no connection open and follows no redirection.

    A request without a whole answer raises a `ConnectionError` with a message of one line.
    """

    seconds: float  # time limit of a whole answer
    key: str | None = field(default_factory=lambda: os.environ.get(KEY), repr=False)  # the server must prove it
    most: int = MOST_BYTES  # size limit of an answer

    def get(self, url: str, params: dict[str, str] | None = None, timeout: float | None = None) -> Answer:
        return self._ask("GET", f"{url}?{urlencode(params)}" if params else url, None, timeout or self.seconds)

    def post(self, url: str, json: Any = None) -> Answer:
        return self._ask("POST", url, b"" if json is None else jsons.dumps(json).encode(), self.seconds)

    def _ask(self, method: str, url: str, body: bytes | None, seconds: float) -> Answer:
        place, nonce, end = urlsplit(url), secrets.token_hex(16), time.monotonic() + seconds
        headers = {"Content-Type": "application/json", NONCE: nonce}
        if self.key and not place.path.endswith("/health"):  # the first request, whose answer proves the key
            headers["Authorization"] = f"Bearer {self.key}"
        where = place.netloc.rpartition("@")[2]
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        try:
            line = kind(place.hostname or "", place.port, timeout=min(seconds, PROBE_SECONDS))
            line.connect()
            line.sock.settimeout(None)
            ending = Timer(end - time.monotonic(), _hang_up, [line.sock])
            ending.start()
            try:
                line.request(method, url.removeprefix(f"{place.scheme}://{place.netloc}") or "/", body, headers)
                answer = line.getresponse()
                said = Answer(place.path, answer.status, self._read(answer))
                if time.monotonic() >= end:  # an answer without a length ends when the timer closes the connection
                    raise TimeoutError
            finally:
                ending.cancel()
                line.close()
        except (OSError, HTTPException, ValueError) as error:
            garbled = isinstance(error, HTTPException) and not isinstance(error, OSError)
            cause = "what answers does not speak HTTP" if garbled else str(error)  # its bytes are not shown
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                cause = f"no whole answer within {seconds:g} s"
            raise ConnectionError(f"{where}: {cause}") from None
        if self.key and not hmac.compare_digest(answer.headers.get(PROOF, "").encode(), proof(self.key, nonce)):
            wrong = f"what answers does not have the key of {KEY}: start it with `grpo-ext serve` and the same key"
            raise ConnectionError(f"{where}: {wrong}")
        return said

    def _read(self, answer: Any) -> bytes:
        pieces, size = [], 0
        while (piece := answer.read(2**20)) and (size := size + len(piece)) <= self.most:
            pieces.append(piece)
        if piece:
            raise OSError(f"an answer of more than {self.most:,} bytes")
        if answer.length:
            raise OSError("the answer ended early")
        return b"".join(pieces)


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # a blocked read or write returns at once


def proof(key: str, nonce: str) -> bytes:
    """Return the proof, for a nonce, that one has the key."""
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest().encode()


def who_answers(line: Line, base: str) -> str:
    """Return the version of the vLLM server at `base` and its model, as "0.31.0 with NAME".

    `ConnectionError` if the server is not healthy, is not vLLM, or has another key.
    """
    found = []
    for path in ("/health", "/version", "/v1/models"):
        answer = line.get(base + path, timeout=min(line.seconds, PROBE_SECONDS))
        if answer.status_code != 200:
            hint = f": set {KEY} to the key of the server" if answer.status_code == 401 else ""
            raise ConnectionError(f"{path} answers with status {answer.status_code}{hint}")
        found.append(answer)
    return f"{found[1].json()['version']} with {found[2].json()['data'][0]['id']}"
