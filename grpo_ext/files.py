"""Files that are whole or not there, and folders that one process has at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import IO


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` through a temporary file beside it, so that a stopped run leaves no half-written file.

    Lone surrogates, which a tokenizer can decode to and UTF-8 cannot hold, are written as backslash escapes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def hold(folder: Path, seconds: float = 0.0) -> IO[str] | None:
    """Have a folder to oneself, until the file that this returns is closed or the process has ended, however it ends.

    Args:
        folder: is made where it is not there.
        seconds: to wait for a process that has it.

    Returns:
        `None` if another process has it. Disks that know no locks are not guarded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    file = open(folder / ".lock", "w")  # noqa: SIM115  what is held is held while it is open
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not shared with processes that are forked off
            return file
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return file
        if time.monotonic() >= end:
            file.close()
            return None
        time.sleep(0.1)
