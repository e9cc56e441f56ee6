"""Run a program on each input, each time in a forked process with limits and, if given, a filter.

    python -s -S -B -P inside READY_FD

The command reads a job as JSON from its standard input, `{"program", "imports", "expressions",
"expected", "inputs", "seconds", "megabytes", "filter"}`, and answers each input with a frame on its
standard output: a line of JSON, `{"status", "length"}`, followed by `length` bytes. These bytes are
what the program printed or, if there are `expressions`, one line for each with its canonical text
(`!` if it has none). `status` is the program's exit code, or null if the program was killed at the
limit on time or output; the remaining inputs are then skipped.

`filter` is a compiled seccomp filter in base64, or empty if the program is not isolated. With a
filter, the program cannot signal this process, trace it, or write to its descriptors. The forked
process writes a byte to READY_FD when its limits and any filter are in place. A failure after that
is the program's fault.
"""

import base64
import builtins
import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
import time
import types
from contextlib import suppress
from typing import Any

# This folder is the first entry of sys.path.
from canonical import canonical  # type: ignore[import-not-found]

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
MAX_OPEN_FILES = 64
MAX_FILE_BYTES = 16 << 20
MAX_OUTPUT_BYTES = 4 << 20  # for all inputs together
RECURSION_LIMIT = 2000
NO_TEXT = "!"


def main() -> None:
    job = json.load(sys.stdin)
    ready_fd = int(sys.argv[1])
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    deadline = time.monotonic() + job["seconds"]
    room = MAX_OUTPUT_BYTES
    for stdin in job["inputs"]:
        with open("stdin", "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(stdin)
        reading_fd, writing_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading_fd)
            become_program(job, libc, writing_fd, ready_fd)
            run_program(job, writing_fd)
            return
        os.close(writing_fd)
        output, in_time = read_output(reading_fd, deadline, room)
        room -= len(output)
        os.close(reading_fd)
        status = end_of(pid, in_time, deadline)
        send_frame(status, output)
        if status is None or room <= 0:
            break
    os._exit(0)


def read_output(fd: int, deadline: float, room: int) -> tuple[bytes, bool]:
    """Return the program's output, and whether the program closed the pipe within the limits.

    Args:
        fd: the read end of the pipe.
        deadline: the time (`time.monotonic`) at which to stop reading.
        room: the number of bytes at which to stop reading.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    chunks: list[bytes] = []
    while room > 0:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or not poll.poll(1000 * seconds_left):
            return b"".join(chunks), False
        chunk = os.read(fd, min(room, 1 << 16))
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
        room -= len(chunk)
    return b"".join(chunks), False


def end_of(pid: int, in_time: bool, deadline: float) -> int | None:
    """Wait for the program, which may run on after closing its output; return its exit code.

    At the deadline, or immediately if `in_time` is false, kill the program and return `None`.

    Args:
        pid: the process id of the program.
        in_time: whether the program closed its output within the limits.
        deadline: the time (`time.monotonic`) at which to kill the program.
    """
    while in_time and time.monotonic() < deadline:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def send_frame(status: int | None, output: bytes) -> None:
    head = json.dumps({"status": status, "length": len(output)})
    frame = head.encode() + b"\n" + output
    while frame:
        num_written = os.write(1, frame)
        frame = frame[num_written:]


def become_program(job: dict[str, Any], libc: Any, writing_fd: int, ready_fd: int) -> None:
    """Set up the program's descriptors, limits and filter in this process, then report "ready".

    Args:
        job: the job, as read from the standard input.
        libc: the C library, loaded with `ctypes`.
        writing_fd: the write end of the pipe for the program's output, or for the values of the
            expressions if there are any.
        ready_fd: the descriptor on which to report "ready"; it is closed afterwards.
    """
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd if job["expressions"] else writing_fd, 1)
    os.dup2(null_fd, 2)
    kept_fds = {ready_fd, writing_fd} if job["expressions"] else {ready_fd}
    for fd in range(3, MAX_OPEN_FILES):
        if fd not in kept_fds:
            close(fd)
    standard_input = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdin = standard_input
    sys.__stdin__ = standard_input  # type: ignore[misc]
    sys.setrecursionlimit(RECURSION_LIMIT)
    filter_bytes = base64.b64decode(job["filter"])
    limit(job["seconds"], job["megabytes"])
    if filter_bytes:
        confine(libc, filter_bytes)
    os.write(ready_fd, b"1")
    os.close(ready_fd)


def close(fd: int) -> None:
    with suppress(OSError):
        os.close(fd)


def limit(seconds: float, megabytes: int) -> None:
    """Limit this process's CPU time, address space, file size and descriptors; allow no core dumps.

    The address space is limited only on Linux, because macOS does not support such a limit.
    """
    limits = {
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "linux":
        limits[resource.RLIMIT_AS] = megabytes << 20
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))


def confine(libc: Any, filter_bytes: bytes) -> None:
    """Load a compiled seccomp filter into this process; raise `OSError` if the kernel rejects it.

    Threads that are started later inherit the filter.
    """
    instructions = ctypes.create_string_buffer(filter_bytes, len(filter_bytes))
    program = struct.pack("HxxxxxxP", len(filter_bytes) // 8, ctypes.addressof(instructions))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def run_program(job: dict[str, Any], writing_fd: int) -> None:
    """Run the program as `__main__`; if there are expressions, write their values and exit.

    For each expression, a line is written to `writing_fd`: the canonical text of its value, or `!`
    if it has none. Errors of the program are ignored, so that definitions before the error can be
    evaluated. The exit code is 0, or 1 if memory runs out for a value that the tests expect
    (`job["expected"]`).

    Without expressions, exceptions and `SystemExit` reach the interpreter, which shuts down as
    after any script: it waits for threads, runs `atexit` handlers, flushes its buffers, and sets
    the exit code.
    """
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    namespace = module.__dict__
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # defined by `site`, which -S skips
    if not job["expressions"]:
        exec(compile(job["program"], "program.py", "exec"), namespace)
        return
    for statements in (job["program"], job["imports"]):
        with suppress(BaseException):  # the tests can still use the definitions before the error
            exec(compile(statements, "program.py", "exec"), namespace)
    for expression in job["expressions"]:
        try:
            text = canonical(eval(expression, namespace), job["expected"])
        except MemoryError:
            if job["expected"]:
                os._exit(1)  # the limit is at fault, not the expression
            text = NO_TEXT
        except BaseException:
            text = NO_TEXT
        line = f"{text}\n".encode()
        while line:
            line = line[os.write(writing_fd, line) :]
    os._exit(0)


if __name__ == "__main__":
    main()
