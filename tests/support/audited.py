"""What this process connects to, opens and starts, as Python's audit events say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass
class Events:
    """What happened while it was watched."""

    addresses: set[object] = field(default_factory=set)
    written: set[str] = field(default_factory=set)  # files that were opened for writing
    opened: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)  # programs


_watching: list[Events] = []  # an audit hook stays as long as the process


def _hook(event: str, arguments: tuple) -> None:
    if not _watching:
        return
    events = _watching[-1]
    if event == "socket.connect":
        events.addresses.add(arguments[1][:2])
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        events.started.append(str(arguments[0]))
    elif event == "open" and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        events.opened.add(path)
        if arguments[2] & WRITES:
            events.written.add(path)


@contextmanager
def audited() -> Iterator[Events]:
    """Watch this process, all threads of it."""
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)
    _watching.append(Events())
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


_installed: list[bool] = []
