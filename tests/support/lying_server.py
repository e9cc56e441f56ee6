"""A server at 127.0.0.1 that lies in many ways at once, and keeps every byte that it hears.

A lie is a pair: what is changed, and to what. Lies change an honest answer in their order.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache

from tests.support.lies import ARROW, Lie

FLOOD = b"x" * 65536
DRIP_SECONDS = 0.005
PATIENCE = 60.0  # seconds after which a client does not end; a hundred times what is in time
NOT_TLS = "\x16\x03\x03\x3f\xff\x1b[2J"  # the beginning of a record, and no more of TLS


@dataclass
class Reply:
    """An answer before it is sent."""

    body: bytes
    start: str = "HTTP/1.1 200 OK"
    headers: list[str] = field(default_factory=list)
    length: str | None = None  # the value of Content-Length; None: the true one, "": no header
    chunk: str | None = None  # the size line of each chunk; None: no chunks, "": the true sizes
    manner: str = "whole"  # how it is sent, with a number of bytes where that matters

    def tell(self, kind: str, value: str) -> None:
        """Change the answer by a lie."""
        if kind == "start":
            self.start = value
        elif kind == "header":
            self.headers.append(value)
        elif kind == "headers":
            self.headers += ["X-A: b" * 1000] * int(value)
        elif kind == "length":
            self.length = value
        elif kind == "chunk":
            self.chunk = value
        elif kind == "body":
            self.body = value.encode("utf-8", "surrogatepass")
        elif kind == "many":
            self.body = b"[" + b",".join([value.encode()] * (2**20 // (len(value) + 1))) + b"]"
        elif kind == "edit":
            old, new = value.split(ARROW)
            self.body = self.body.replace(old.encode(), new.encode("utf-8", "surrogatepass"))
        elif kind == "gzip":
            self.headers.append("Content-Encoding: gzip")
            self.body = gzip.compress(self.body) + zipped_spaces(int(value))
        elif kind == "manner":
            self.manner = value
        else:
            raise ValueError(kind)

    def __bytes__(self) -> bytes:
        lines = [self.start, *self.headers]
        body = self.body
        if self.chunk is not None:
            lines.append("Transfer-Encoding: chunked")
            pieces = [body[i : i + 1000] for i in range(0, len(body), 1000)]
            sizes = [self.chunk or f"{len(piece):x}" for piece in pieces]
            chunks = zip(sizes, pieces, strict=True)
            body = b"".join(f"{size}\r\n".encode() + piece + b"\r\n" for size, piece in chunks)
            body += b"0\r\n\r\n"
        elif self.length != "":
            lines.append(f"Content-Length: {self.length or len(body)}")
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


@lru_cache
def zipped_spaces(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(b" " * 2**20) for _ in range(mebibytes)]
    return b"".join([*pieces, packer.flush()])


@dataclass
class Asked:
    """A request."""

    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class LyingServer:
    """Answers each request with what `answer(asked, number)` returns; `heard` has all bytes.

    Unless it `reads`, it takes connections and no bytes. It answers TLS in the manner `to_tls`,
    and not with TLS.
    """

    def __init__(self, answer: Callable[[Asked, int], Reply], reads: bool, to_tls: str):
        self.answer = answer
        self.reads = reads
        self.to_tls = to_tls
        self.heard: list[bytes] = []
        self.count = 0
        self.ended = threading.Event()
        self.threads: list[threading.Thread] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def accept(self) -> None:
        self.listener.settimeout(0.02)
        while not self.ended.is_set():
            with suppress(TimeoutError):
                connection = self.listener.accept()[0]
                thread = threading.Thread(target=self.serve, args=(connection,), daemon=True)
                self.threads.append(thread)
                thread.start()

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.05)
            if not self.reads:
                self.ended.wait()
                return
            asked = self.read(connection)
            if asked is None:  # no request: it speaks TLS, or has gone
                self.send(connection, Reply(b"", NOT_TLS, manner=self.to_tls))
                return
            number = self.count
            self.count += 1
            self.send(connection, self.answer(asked, number))

    def read(self, connection: socket.socket) -> Asked | None:
        data = b""
        size: int | None = None
        while not self.ended.is_set() and (size is None or len(data) < size):
            try:
                piece = connection.recv(2**20)
            except TimeoutError:
                continue
            self.heard.append(piece)
            data += piece
            head, ends, _ = data.partition(b"\r\n\r\n")
            if not piece or (not ends and data[:1] == b"\x16"):
                return None
            if ends and size is None:
                lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
                size = len(head) + 4 + int(headers.get("content-length", 0))
        if size is None:
            return None
        method, target = lines[0].split()[:2]
        return Asked(method, target, headers, data[len(head) + 4 :])

    def send(self, connection: socket.socket, reply: Reply) -> None:
        manner, _, number = reply.manner.partition(" ")
        data = bytes(reply)
        kept = int(number or 0)
        if manner == "whole":
            self.push(connection, data)
        elif manner in ("silent", "stop"):
            self.push(connection, data[:kept])
            self.hold(connection)
        elif manner == "close":
            self.push(connection, data[:kept])
        elif manner == "reset":
            self.push(connection, data[:kept])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif manner == "drip":
            self.push(connection, data[:kept])
            for i in range(kept, len(data)):
                self.push(connection, data[i : i + 1])
                self.ended.wait(DRIP_SECONDS)
            self.hold(connection)
        elif manner == "endless":
            self.push(connection, data[:kept])
            while not self.ended.is_set():
                self.push(connection, FLOOD)
        elif manner == "again":
            while not self.ended.is_set():
                self.push(connection, data[:kept])
        else:
            raise ValueError(manner)

    def hold(self, connection: socket.socket) -> None:
        """Wait until the client closes the connection."""
        more = b"more"
        while more and not self.ended.is_set():
            with suppress(TimeoutError):
                more = connection.recv(2**20)
                self.heard.append(more)

    def push(self, connection: socket.socket, data: bytes) -> None:
        """Send until it is sent or the server ends."""
        view = memoryview(data)
        while len(view) and not self.ended.is_set():
            with suppress(TimeoutError):
                view = view[connection.send(view) :]


@contextmanager
def lying(answer: Callable[[Asked, int], Reply], lies: list[Lie]) -> Iterator[LyingServer]:
    """Serve, and end with all threads. The client must have closed all connections before."""
    manners = [value for kind, value in lies if kind == "manner"]
    server = LyingServer(answer, "unread" not in manners, manners[-1] if manners else "whole")
    thread = threading.Thread(target=server.accept, daemon=True)
    thread.start()
    try:
        yield server
        if server.reads:
            for serving in server.threads:
                serving.join(PATIENCE)
                assert not serving.is_alive(), "the client keeps a connection"
    finally:
        server.ended.set()
        for running in [thread, *server.threads]:
            running.join()
        server.listener.close()


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()
