"""HTTP requests to untrusted servers, with limits on the time and size of each response."""

import json as jsons
import socket
import ssl
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, InvalidURL
from threading import Thread, Timer
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from grpo_ext.common.untrusted import one_line

# Time limit for connecting, which includes the DNS lookup but not the TLS handshake.
CONNECT_SECONDS = 5.0
MOST_BYTES = 16 * 2**20  # size limit of a response
MAX_TEXT = 300  # maximum number of characters of a response that an error message shows
READ_BYTES = 2**16  # number of bytes to read at a time


class StatusError(ConnectionError):
    """Raised if a server responds with an unexpected HTTP status, which is stored as `status`."""

    def __init__(self, status: int, text: str):
        super().__init__(f"Request failed: {status}, {text}")
        self.status = status


@dataclass(frozen=True)
class Answer:
    """A server's response to a request."""

    path: str  # of the requested URL, without the query
    status_code: int
    body: bytes
    headers: dict[str, str] = field(repr=False)  # names in lower case

    @property
    def text(self) -> str:
        """The beginning of the body, at most `MAX_TEXT` characters, escaped to fit on one line."""
        beginning = self.body[:MAX_TEXT].decode("utf-8", errors="replace")
        return one_line(beginning)[:MAX_TEXT]

    def read_as(self, kind: Any) -> Any:
        """Parse the body as JSON and return it as a value of the type `kind`.

        Args:
            kind: a type that pydantic can validate, such as `dict[str, int]` or a model class.

        Raises:
            ValueError: if the body is not JSON or does not fit `kind`. The message has one line and
                quotes no values from the response, but may contain the keys of a mapping.
        """
        try:
            # `validate_json` would take up to 2.5 times as much memory.
            value = from_json(self.body)
        except ValueError as error:
            raise ValueError(f"Invalid JSON: {error}") from None
        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            place = one_line(".".join(map(str, fault["loc"])))[:MAX_TEXT]
            reason = fault["msg"][:100]
            raise ValueError(f"{place}: {reason}" if place else reason) from None

    def raise_for_status(self, *expected: int) -> None:
        """Raise `StatusError` unless the status is 200 or one of `expected`."""
        if self.status_code not in (200, *expected):
            raise StatusError(self.status_code, self.text)


@dataclass
class Line:
    """An HTTP client that opens a connection per request and does not follow redirects.

    Requests raise `ConnectionError`, with a one-line message, unless a complete response arrives.
    """

    seconds: float  # time limit for a complete response
    most: int = MOST_BYTES  # size limit of a response
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # sent with each request

    def get(
        self,
        url: str,
        params: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Send a GET request and return the response, whatever its status.

        Args:
            url: the URL.
            params: the query parameters to append to the URL.
            timeout: the time limit in seconds; `None` uses `self.seconds`.

        Raises:
            ConnectionError: if the URL is invalid, if the server cannot be reached, if no complete
                response arrives in time, or if the response is not HTTP or is larger than
                `self.most` bytes.
        """
        if params:
            url = f"{url}?{urlencode(params)}"
        return self.ask("GET", url, None, timeout or self.seconds)

    def post(self, url: str, json: Any = None) -> Answer:
        """Send a POST request with a JSON body, and return the response, whatever its status.

        The body is empty if `json` is `None`.

        Raises:
            ConnectionError: if the URL is invalid, if the server cannot be reached, if no complete
                response arrives in time, or if the response is not HTTP or is larger than
                `self.most` bytes.
        """
        body = b"" if json is None else jsons.dumps(json).encode()
        return self.ask("POST", url, body, self.seconds)

    def ask(
        self,
        method: str,
        url: str,
        body: bytes | None,
        seconds: float,
        **headers: str,
    ) -> Answer:
        """Send a request and return the complete response, whatever its status.

        Args:
            method: the HTTP method, such as "GET".
            url: the URL, with its query.
            body: the request body; `None` sends no body.
            seconds: the time limit in seconds, from connecting to the end of the response.
            headers: headers for this request; they override those in `self.headers`.

        Raises:
            ConnectionError: if the URL is invalid, if the server cannot be reached, if no complete
                response arrives in time, or if the response is not HTTP or is larger than
                `self.most` bytes.
        """
        try:
            place = urlsplit(url)
            if place.scheme not in ("http", "https"):
                raise ValueError("it does not begin with http:// or https://")
        except ValueError as error:
            raise ConnectionError(f"not a URL: {error}") from None
        headers = {"Content-Type": "application/json", **self.headers, **headers}
        end = time.monotonic() + seconds
        connect_seconds = min(seconds, CONNECT_SECONDS)
        late = f"no connection within {connect_seconds:.3g} s"
        try:
            connection = connect(place, connect_seconds)
            late = f"no complete response within {seconds:.3g} s"
            seconds_left = end - time.monotonic()
            ending = Timer(seconds_left, _hang_up, [connection.sock])
            ending.start()
            try:
                if isinstance(connection.sock, ssl.SSLSocket):
                    connection.sock.do_handshake()
                connection.request(method, target_of(url), body, headers)
                # An unclosed response would keep the connection open while a raised error exists.
                with connection.getresponse() as response:
                    answer_headers = {}
                    for name, value in response.getheaders():
                        answer_headers[name.lower()] = value
                    content = self._read(response)
                    answer = Answer(place.path, response.status, content, answer_headers)
                # A response without a length looks complete when the timer closes the connection.
                if time.monotonic() >= end:
                    raise TimeoutError
            finally:
                ending.cancel()
                connection.close()
        except (OSError, HTTPException, ValueError) as error:
            cause = str(error)
            if isinstance(error, InvalidURL):
                cause = "not a URL: it contains a space or a control character"
            elif isinstance(error, HTTPException) and not isinstance(error, OSError):
                cause = "the server does not speak HTTP"  # do not show its bytes
            if isinstance(error, TimeoutError) or time.monotonic() >= end:
                cause = late
            raise ConnectionError(f"{place.netloc.rpartition('@')[2]}: {cause}") from None
        return answer

    def _read(self, response: HTTPResponse) -> bytes:
        body = bytearray()
        # `response.read` has no limit if a chunk claims a size of -1 bytes.
        buffer = bytearray(READ_BYTES)
        while size := response.readinto(buffer):
            if len(body) + size > self.most:
                raise OSError(f"the response is larger than {self.most:,} bytes")
            body += memoryview(buffer)[:size]
        if response.length:
            raise OSError("the response ended early")
        return bytes(body)


def connect(place: SplitResult, seconds: float) -> HTTPConnection:
    """Return an open connection to the host of a URL; the connection's socket has no timeout.

    Connects in a thread, because DNS lookups have no time limit and a name can have many addresses.
    For https, the TLS handshake is left to the caller.

    Args:
        place: the URL, split by `urlsplit`.
        seconds: the time limit for connecting, including the DNS lookup.

    Raises:
        TimeoutError: if there is no connection after `seconds`.
        OSError: if the host is unknown or unreachable, or refuses the connection.
        HTTPException or ValueError: if the host or the port of the URL is invalid.
    """
    host = place.hostname or ""
    kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
    connection = kind(host, place.port or kind.default_port, timeout=seconds)
    connected: Future[None] = Future()

    def open_connection() -> None:
        error = None
        try:
            HTTPConnection.connect(connection)
        except Exception as raised:
            error = raised
        if not connected.set_running_or_notify_cancel():  # the caller has given up
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
            connection.sock,
            server_hostname=host,
            do_handshake_on_connect=False,
        )
    return connection


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Return the default TLS context, cached because creating one takes longer than a request."""
    return ssl.create_default_context()


def target_of(url: str) -> str:
    """Return a URL's request target: its path (`/` if empty) and its query, such as `/v1?a=1`."""
    place = urlsplit(url)
    query = f"?{place.query}" if place.query else ""
    return (place.path or "/") + query


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        # Wakes a blocked read or write. `SSLSocket.shutdown` would also drop the TLS state that
        # the reading thread still uses.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
