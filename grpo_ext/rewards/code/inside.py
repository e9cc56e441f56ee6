"""The program inside the sandbox. It runs on Linux as a script (`python -I -S inside.py`) and imports nothing of this package.

It reads `{"program", "stdin", "expressions", "seconds", "megabytes", "isolated"}` from its standard input, isolates itself,
runs the program, and writes what the program printed and the values of the expressions. An isolated process has new namespaces
of users, network, processes, messages and mounts; a root folder in memory, with Python read-only; no capability; and a filter
of system calls, so that it starts no process and opens no socket.
"""

import ctypes
import io
import json
import os
import platform
import resource
import struct
import sys
import traceback
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACES = (
    0x00020000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
)  # mounts, messages, users, processes, network
BIND, RECURSIVE, PRIVATE, READ_ONLY, REMOUNT, RELATIME = 4096, 16384, 1 << 18, 1, 32, 1 << 21
FOLDER_MEGABYTES, FILES, OPEN_FILES = 16, 1000, 64
MOST_OUTPUT = 1_000_000  # characters
# By machine: its number in filters, `clone`, which may only make threads, and the system calls that fail: fork, vfork, clone3,
# execve, execveat, socket, socketpair, ptrace, memfd_create, unshare, setns, mount, bpf, perf_event_open, io_uring_setup,
# keyctl, add_key, userfaultfd, process_vm_writev, setsid, shmget.
X86 = (
    57,
    58,
    435,
    59,
    322,
    41,
    53,
    101,
    319,
    272,
    308,
    165,
    321,
    298,
    425,
    250,
    248,
    323,
    311,
    112,
    29,
)
ARM = (435, 221, 281, 198, 199, 117, 279, 97, 268, 40, 280, 241, 425, 219, 217, 282, 271, 157, 194)
CALLS = {"x86_64": (0xC000003E, 56, X86), "aarch64": (0xC00000B7, 220, ARM)}


def checked(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    given = (text.encode() if text else None for text in (source, target, kind))
    checked(LIBC.mount(*given, flags, data.encode() or None), f"mount {target}")


def isolate() -> None:
    """Isolate this process from the machine; `OSError` where the kernel does not allow it."""
    if platform.machine() not in CALLS:
        raise OSError(f"no filter of system calls is known for {platform.machine()}")
    user, group = os.getuid(), os.getgid()
    checked(LIBC.unshare(NEW_NAMESPACES), "namespaces")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    if child := os.fork():  # the child is the first process of its namespace: nothing survives it
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    LIBC.prctl(1, 9, 0, 0, 0)  # die with the parent
    root_in_memory()
    LIBC.prctl(38, 1, 0, 0, 0)  # no new privileges
    checked(LIBC.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capabilities")
    filter_calls()


def root_in_memory() -> None:
    """Make a folder in memory the root, with the folders of Python and its libraries in it, read-only."""
    mount("", "/", None, RECURSIVE | PRIVATE)
    mount("room", "/tmp", "tmpfs", 2 | 4, f"size={FOLDER_MEGABYTES}m,nr_inodes={FILES},mode=700")
    for folder in sorted(
        {
            os.path.realpath(path)
            for path in (sys.base_prefix, "/usr/lib", "/usr/lib64", "/lib", "/lib64")
        }
    ):
        if not os.path.isdir(folder) or os.path.isdir(f"/tmp{folder}") or folder == "/":
            continue
        os.makedirs(f"/tmp{folder}")
        mount(folder, f"/tmp{folder}", None, BIND)
        flags = os.statvfs(
            folder
        ).f_flag  # a remount must keep these; statvfs has other numbers for some
        kept = flags & (2 | 4 | 8 | 1024 | 2048) | (RELATIME if flags & 4096 else 0)
        mount("", f"/tmp{folder}", None, BIND | REMOUNT | READ_ONLY | kept)
    os.chroot("/tmp")
    os.makedirs("/tmp", exist_ok=True)
    os.chdir("/tmp")
    os.environ.clear()


def filter_calls() -> None:
    """Make the system calls in `CALLS` fail from now on, and `clone` unless it makes a thread."""
    arch, clone, refused = CALLS[platform.machine()]
    load, equal, greater, bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, fail, kill, missing = (
        0x7FFF0000,
        0x00050001,
        0x80000000,
        0x00050026,
    )  # EPERM; clone3 is not there (ENOSYS)
    program = [
        (load, 0, 0, 4),
        (equal, 1, 0, arch),
        (answer, 0, 0, kill),
        (load, 0, 0, 0),
        (greater, 0, 1, 1 << 30),
    ]
    program += [(answer, 0, 0, kill)]  # numbers of another kind of program
    for number in refused:
        program += [(equal, 0, 1, number), (answer, 0, 0, missing if number == 435 else fail)]
    program += [
        (equal, 0, 3, clone),
        (load, 0, 0, 16),
        (bit, 1, 0, 0x00010000),
        (answer, 0, 0, fail),
        (answer, 0, 0, allow),
    ]
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    pointer = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    )
    checked(LIBC.prctl(22, 2, pointer, 0, 0), "filter of system calls")


def limit(seconds: float, megabytes: int) -> None:
    """Limit processor time, memory, and what is written and open."""
    whole = int(seconds) + 1
    for kind, most in (
        (resource.RLIMIT_CPU, whole), (resource.RLIMIT_AS, megabytes << 20), (resource.RLIMIT_FSIZE, FOLDER_MEGABYTES << 20),
        (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main() -> None:
    LIBC.prctl(1, 9, 0, 0, 0)  # die with the parent
    asked = json.load(sys.stdin)
    answers = os.dup(1)
    for fd in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    os.closerange(answers + 1, 1024)
    try:
        limit(asked["seconds"], asked["megabytes"])
        if asked["isolated"]:
            isolate()
    except OSError as error:
        os.write(answers, json.dumps({"refused": str(error)}).encode())
        return
    printed = io.StringIO()
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(asked["stdin"]), printed, io.StringIO()
    sys.setrecursionlimit(2000)
    space: dict[str, Any] = {"__name__": "__main__"}
    values: list[str | None] = []
    wrong = ""
    try:
        exec(compile(asked["program"], "program.py", "exec"), space)
    except SystemExit:
        pass
    except BaseException:
        wrong = traceback.format_exc(limit=-3)
    for expression in asked["expressions"]:
        try:
            values.append(repr(eval(expression, space))[:MOST_OUTPUT])
        except BaseException as error:
            values.append(None)
            wrong = wrong or repr(error)
    found = {"printed": printed.getvalue()[:MOST_OUTPUT], "values": values, "error": wrong[-2000:]}
    with open(answers, "wb") as file:
        file.write(
            json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")[: 4 * MOST_OUTPUT]
        )
    os._exit(0)


if __name__ == "__main__":
    main()
