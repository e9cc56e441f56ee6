"""HTTP requests to a server that may be anything, with limits on the time and the size of each
answer.
"""

import json as jsons
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from typing import Any
from urllib.parse import urlencode, urlsplit

CONNECT_SECONDS = 5.0  # time limit of a connection
MOST_BYTES = 16 * 2**20  # size limit of an answer


@dataclass(frozen=True)
class Answer:
    """The answer of a server."""

    path: str
    status_code: int
    body: bytes
    headers: dict[str, str] = field(repr=False)  # names in lower case

    @property
    def text(self) -> str:
        """The beginning of the answer, without control characters."""
        return "".join(
            c if c.isprintable() else " " for c in self.body[:300].decode("utf-8", errors="replace")
        )


@dataclass
class Line:
    """A client that keeps no connection open and follows no redirection.

    A request without a whole answer raises a `ConnectionError` with a message of one line.
    """

    seconds: float  # time limit of a whole answer
    most: int = MOST_BYTES  # size limit of an answer
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # of each request

    def get(
        self, url: str, params: dict[str, str] | None = None, timeout: float | None = None
    ) -> Answer:
        return self.ask(
            "GET", f"{url}?{urlencode(params)}" if params else url, None, timeout or self.seconds
        )

    def post(self, url: str, json: Any = None) -> Answer:
        return self.ask(
            "POST", url, b"" if json is None else jsons.dumps(json).encode(), self.seconds
        )

    def ask(
        self, method: str, url: str, body: bytes | None, seconds: float, **headers: str
    ) -> Answer:
        place = urlsplit(url)
        end = time.monotonic() + seconds
        headers = {"Content-Type": "application/json", **self.headers, **headers}
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        try:
            line = kind(place.hostname or "", place.port, timeout=min(seconds, CONNECT_SECONDS))
            line.connect()
            line.sock.settimeout(None)
            ending = Timer(end - time.monotonic(), _hang_up, [line.sock])
            ending.start()
            try:
                line.request(method, target_of(url), body, headers)
                answer = line.getresponse()
                found = {name.lower(): value for name, value in answer.getheaders()}
                said = Answer(place.path, answer.status, self._read(answer), found)
                if (
                    time.monotonic() >= end
                ):  # an answer without a length ends when the timer closes the connection
                    raise TimeoutError
            finally:
                ending.cancel()
                line.close()
        except (OSError, HTTPException, ValueError) as error:
            garbled = isinstance(error, HTTPException) and not isinstance(error, OSError)
            # its bytes are not shown
            cause = "what answers does not speak HTTP" if garbled else str(error)
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                cause = f"no whole answer within {seconds:g} s"
            raise ConnectionError(f"{place.netloc.rpartition('@')[2]}: {cause}") from None
        return said

    def _read(self, answer: Any) -> bytes:
        pieces = []
        size = 0
        while (piece := answer.read(2**20)) and (size := size + len(piece)) <= self.most:
            pieces.append(piece)
        if piece:
            raise OSError(f"an answer of more than {self.most:,} bytes")
        if answer.length:
            raise OSError("the answer ended early")
        return b"".join(pieces)


def target_of(url: str) -> str:
    """Return what a request asks for: path and query of a URL."""
    place = urlsplit(url)
    return url.removeprefix(f"{place.scheme}://{place.netloc}") or "/"


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)  # a blocked read or write returns at once
