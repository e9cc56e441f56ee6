"""A client in an environment full of keys: what it tells a server, writes, logs and takes."""

from __future__ import annotations

import base64
import logging
import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from grpo_ext.vllm.signature import KEY
from tests.support.audited import audited
from tests.support.lies import FILE, Lie
from tests.support.lying_server import PATIENCE, Asked, LyingServer, Reply, lying

SECRET = "hunted-key"
NAMED = "wanted-key"  # `api_key_env` names it: it may go to the judge, and into no message
VARIABLES = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "WANDB_API_KEY",
    "GITHUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
]
PROXIES = ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]


@dataclass
class Watch:
    """A client in a thread beside a lying server, and what it said."""

    server: LyingServer
    folder: Path
    scheme: str
    said: list[str] = field(default_factory=list)  # messages of errors and logs

    @property
    def base(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.port}"

    def run(self, work: Callable[[], Any], *expected: type[Exception]) -> Any:
        """Return what `work()` returns, or None if it raises one of the expected errors."""
        results: list[Any] = []
        errors: list[BaseException] = []

        def kept() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=kept, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the client did not end"
        for error in errors:
            if not isinstance(error, expected):
                raise error
            assert "\n" not in str(error)
            self.said.append(str(error))
        return results[0] if results else None


class Messages(logging.Handler):
    def __init__(self, said: list[str]):
        super().__init__()
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@contextmanager
def watched(
    answer: Callable[[Asked, int], Reply],
    lies: list[Lie],
    scheme: str,
    names: str,
    key: str | None,
    mebibytes: int,
) -> Iterator[Watch]:
    """Serve in an environment full of keys, and look afterwards at all that happened.

    Args:
        answer: of the server.
        lies: that it tells.
        scheme: of its URL; it speaks http anyway.
        names: what becomes of the look-up of names, of `LOOK_UPS`.
        key: the value of `VLLM_API_KEY`, if it is set.
        mebibytes: of memory, beside what the process has.
    """
    threads = set(threading.enumerate())
    root = logging.getLogger()
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as work:
        folder = Path(work, "home")
        folder.mkdir()
        (folder / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}")
        environment = {
            **dict.fromkeys(VARIABLES, SECRET),
            **dict.fromkeys(PROXIES, f"http://me:{SECRET}@127.0.0.1:9"),
            "JUDGE_KEY": NAMED,
            "HOME": str(folder),
            **({KEY: key} if key else {}),
        }
        found = threading.Event()
        with (
            patch.dict(os.environ, environment),
            lying(answer, lies) as server,
            look_up(names, found),
        ):
            if not key:
                os.environ.pop(KEY, None)
            watch = Watch(server, folder, scheme)
            handler = Messages(watch.said)
            root.addHandler(handler)
            Path("/proc/self/clear_refs").write_text("5")  # the peak from here
            before = peak()
            try:
                with audited() as events, patch("threading.excepthook", watch.said.append):
                    yield watch
            finally:
                found.set()
                root.removeHandler(handler)
            assert peak() - before < mebibytes, "memory"
        heard = b"".join(server.heard)
        assert SECRET.encode() not in heard, "a key"
        assert base64.b64encode(f"me:{SECRET}".encode()) not in heard, "a password"
        assert {port for _, port in events.addresses} <= {server.port}, "another address"
        assert not events.started and FILE not in events.opened
        outside = [path for path in events.written if not path.startswith(work)]
        assert not outside, f"written: {outside}"
        for text in watch.said:
            assert isinstance(text, str), f"an error in a thread: {text!r}"
            assert SECRET not in text and NAMED not in text, "a key in a message"
            assert text.replace("\n", "").isprintable(), f"control characters: {text!r}"
            assert not re.search(r"^\W*FORGED", text, re.MULTILINE), "a forged line"
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"a thread lives on: {thread.name}"


def peak() -> int:
    """Return the peak of this process's memory, in MiB."""
    [size] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(size) // 1024


LOOK_UPS = ["", "", "", "", "waits", "fails", "unreadable"]


@contextmanager
def look_up(names: str, found: threading.Event) -> Iterator[None]:
    """Let the look-up of names wait for an event, or fail."""

    def answer(*_: Any, **__: Any) -> Any:
        if names == "waits":
            found.wait(PATIENCE)
        if names == "unreadable":
            raise UnicodeError("label too long")
        raise socket.gaierror(-2, "Name or service not known")

    with patch("socket.getaddrinfo", answer) if names else nullcontext():
        yield
