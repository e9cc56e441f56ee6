"""HTTP requests to untrusted servers, with limits on the time and size of each answer."""

import json as jsons
import socket
import ssl
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Thread, Timer
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from grpo_ext.common.untrusted import one_line

# time limit of a connection, with the look-up of the host's name and without TLS
CONNECT_SECONDS = 5.0
MOST_BYTES = 16 * 2**20  # size limit of an answer
MAX_TEXT = 300  # characters of an answer that an error shows
READ_BYTES = 2**16  # bytes that are read at once


class StatusError(ConnectionError):
    """An answer with another status than 200, which is in `status`."""

    def __init__(self, status: int, text: str):
        super().__init__(f"Request failed: {status}, {text}")
        self.status = status


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
        return one_line(self.body[:MAX_TEXT].decode("utf-8", errors="replace"))[:MAX_TEXT]

    def read_as(self, kind: Any) -> Any:
        """Return the JSON value in the answer as the type `kind`.

        Raises:
            ValueError: if it has another form; one line that quotes nothing of the answer.
        """
        try:
            # `validate_json` takes up to 2.5 times the memory.
            value = from_json(self.body)
        except ValueError as error:
            raise ValueError(f"Invalid JSON: {error}") from None
        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, fault["loc"]))
            reason = fault["msg"][:100]
            raise ValueError(f"{place}: {reason}" if place else reason) from None

    def raise_for_status(self, *expected: int) -> None:
        """Raise a `StatusError` unless the status is 200 or one of those expected."""
        if self.status_code not in (200, *expected):
            raise StatusError(self.status_code, self.text)


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
        if params:
            url = f"{url}?{urlencode(params)}"
        return self.ask("GET", url, None, timeout or self.seconds)

    def post(self, url: str, json: Any = None) -> Answer:
        body = b"" if json is None else jsons.dumps(json).encode()
        return self.ask("POST", url, body, self.seconds)

    def ask(
        self, method: str, url: str, body: bytes | None, seconds: float, **headers: str
    ) -> Answer:
        place = urlsplit(url)
        headers = {"Content-Type": "application/json", **self.headers, **headers}
        end = time.monotonic() + seconds
        connect_seconds = min(seconds, CONNECT_SECONDS)
        late = f"no connection within {connect_seconds:.3g} s"
        try:
            connection = connect(place, connect_seconds)
            late = f"no whole answer within {seconds:.3g} s"
            ending = Timer(end - time.monotonic(), _hang_up, [connection.sock])
            ending.start()
            try:
                if isinstance(connection.sock, ssl.SSLSocket):
                    connection.sock.do_handshake()
                connection.request(method, target_of(url), body, headers)
                # Unless it is closed, a response keeps the connection for as long as its error.
                with connection.getresponse() as response:
                    fields = {name.lower(): value for name, value in response.getheaders()}
                    answer = Answer(place.path, response.status, self._read(response), fields)
                # An answer without a length ends when the timer closes the connection.
                if time.monotonic() >= end:
                    raise TimeoutError
            finally:
                ending.cancel()
                connection.close()
        except (OSError, HTTPException, ValueError) as error:
            cause = str(error)
            if isinstance(error, HTTPException) and not isinstance(error, OSError):
                cause = "what answers does not speak HTTP"  # its bytes are not shown
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                cause = late
            raise ConnectionError(f"{place.netloc.rpartition('@')[2]}: {cause}") from None
        return answer

    def _read(self, response: HTTPResponse) -> bytes:
        body = bytearray()
        # `response.read` reads without a limit if a chunk claims to have -1 bytes.
        buffer = bytearray(READ_BYTES)
        while size := response.readinto(buffer):
            if len(body) + size > self.most:
                raise OSError(f"an answer of more than {self.most:,} bytes")
            body += memoryview(buffer)[:size]
        if response.length:
            raise OSError("the answer ended early")
        return bytes(body)


def connect(place: SplitResult, seconds: float) -> HTTPConnection:
    """Return an open connection to the host of a URL, which waits for its bytes without a limit.

    A thread connects: the system looks up names without a limit of time, and a name can have many
    addresses. The TLS handshake of https is left to the caller.

    Raises:
        TimeoutError: if there is no connection after `seconds`.
        OSError: if the host is unknown or refuses.
    """
    host = place.hostname or ""
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = kind(host, place.port, timeout=seconds)
    connected: Future[None] = Future()

    def open_connection() -> None:
        error = None
        try:
            HTTPConnection.connect(connection)
        except Exception as raised:
            error = raised
        if not connected.set_running_or_notify_cancel():  # nobody waits any more
            connection.close()
        elif error is None:
            connected.set_result(None)
        else:
            connected.set_exception(error)

    Thread(target=open_connection, daemon=True).start()
    try:
        connected.result(seconds)
    except TimeoutError:
        connected.cancel()
        raise
    connection.sock.settimeout(None)
    if place.scheme == "https":
        connection.sock = tls_context().wrap_socket(
            connection.sock, server_hostname=host, do_handshake_on_connect=False
        )
    return connection


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the settings of TLS, which take longer to make than a request."""
    return ssl.create_default_context()


def target_of(url: str) -> str:
    """Return what a request asks for: path and query of a URL."""
    place = urlsplit(url)
    return url.removeprefix(f"{place.scheme}://{place.netloc}") or "/"


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        # A blocked read or write returns at once. The method of an SSLSocket would take the TLS
        # state away from the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
