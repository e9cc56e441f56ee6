"""Limit the total memory of a sandbox, including files and kernel memory, with a cgroup.

Only some users may create cgroups: root (also in most containers), and users in their own systemd
session. For other users, only the limits per process apply (`setrlimit`), which do not cover kernel
memory.
"""

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PREFIX = "grpo-ext-code"
OVERHEAD_MEGABYTES = 64  # for Python, bubblewrap and the files of a run
MAX_TASKS = 256
REMOVAL_SECONDS = 2.0
# Moves a shell into the group before it becomes the sandbox, so that no part of the sandbox is ever
# outside the group.
JOIN = 'echo $$ > "$0" && exec "$@"'
_not_removed: set[Path] = set()  # groups whose processes had not ended after `REMOVAL_SECONDS`


@contextmanager
def memory_group(megabytes: int) -> Iterator[list[str]]:
    """Context manager that creates a cgroup, and yields a prefix that runs a command in the cgroup.

    The prefix is `[]` if this user cannot create cgroups. The cgroup is removed on exit.

    Args:
        megabytes: the memory limit in MiB, to which `OVERHEAD_MEGABYTES` are added.

    Raises:
        OSError: if this cgroup cannot be created, although this user may create cgroups.
    """
    parent = parent_of_groups()
    if parent is None:
        yield []
        return
    for left in list(_not_removed):
        remove(left, seconds=0.0)
    group = new_group(parent, megabytes)
    try:
        yield join_command(group)
    finally:
        remove(group)


@lru_cache(maxsize=1)
def parent_of_groups() -> Path | None:
    """Return a folder where this user may create cgroups with a memory limit.

    Return `None` if there is no such folder. To find out whether there is one, the function creates
    a cgroup and runs a process in it. It also removes cgroups that earlier processes left behind.
    The result is cached.
    """
    for parent in candidates():
        with suppress(OSError, subprocess.SubprocessError):
            remove_abandoned(parent)
            group = new_group(parent, 64)
            try:
                subprocess.run([*join_command(group), "true"], check=True, capture_output=True)
                return parent
            finally:
                remove(group)
    return None


def candidates() -> list[Path]:
    """Return the folders to try: this process's memory cgroup and, for cgroup v2, its parent.

    A cgroup v2 folder is left out if it does not enable the memory controller for its children.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if "memory" in controllers.split(","):
            folders.append(ROOT / "memory" / relative)
        if controllers == "":
            for folder in (ROOT / relative, (ROOT / relative).parent):
                enabled = folder / "cgroup.subtree_control"
                if enabled.is_file() and "memory" in enabled.read_text().split():
                    folders.append(folder)
    return folders


def new_group(parent: Path, megabytes: int) -> Path:
    """Create a cgroup with limits on memory and tasks, and return its folder.

    Its processes together may use `megabytes` plus `OVERHEAD_MEGABYTES`, in MiB.

    Raises:
        OSError: if this user may not create the cgroup or set its limits.
    """
    group = parent / f"{PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    size = str((megabytes + OVERHEAD_MEGABYTES) << 20)
    version_1 = (group / "memory.limit_in_bytes").exists()
    try:
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(size)
        with suppress(OSError):  # a kernel without swap has no swap limit
            if version_1:
                (group / "memory.memsw.limit_in_bytes").write_text(size)
            else:
                (group / "memory.swap.max").write_text("0")
        if (group / "pids.max").exists():
            (group / "pids.max").write_text(str(MAX_TASKS))
    except OSError:
        remove(group)
        raise
    return group


def join_command(group: Path) -> list[str]:
    return ["/bin/sh", "-c", JOIN, str(group / "cgroup.procs")]


def remove(group: Path, seconds: float = REMOVAL_SECONDS) -> None:
    """Remove a cgroup, waiting up to `seconds` for its processes to end.

    If they do not end in time, the next call of `memory_group` tries again.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            if time.monotonic() > until:
                _not_removed.add(group)
                return
            time.sleep(0.002)
            continue
        _not_removed.discard(group)
        return


def remove_abandoned(parent: Path) -> None:
    """Remove the cgroups in `parent` that were created by processes that no longer exist."""
    for group in parent.glob(f"{PREFIX}-*-*"):
        pid = group.name.split("-")[3]
        if not Path("/proc", pid).exists():
            with suppress(OSError):
                group.rmdir()
