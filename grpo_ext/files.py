"""Files that are whole or not there, and folders that one process has at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from filelock import FileLock, Timeout


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


def hold(folder: Path, seconds: float = 0.0) -> FileLock | None:
    """Have a folder to oneself, until the lock that this returns is released or the process has ended, however it ends.

    Args:
        folder: is made where it is not there.
        seconds: to wait for a process that has it.

    Returns:
        `None` if another process has it. Disks that know no locks are not guarded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # one for all threads of this process; a soft lock would outlive a process that is killed
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return lock
