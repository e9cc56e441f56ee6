"""Exchange data with a sandbox: send the job; read answers, error output and the ready signal."""

import os
import selectors
import subprocess
import time
from dataclasses import dataclass, field
from io import FileIO

GRACE_SECONDS = 0.3  # added to the limit, for the harness to report runs that ended in time
MAX_ANSWER_BYTES = (4 << 20) + (1 << 20)  # at most 4 MiB of output, and the headers of the frames
MAX_COMPLAINT_BYTES = 300
CHUNK_BYTES = 1 << 16


@dataclass
class Conversation:
    """Exchanges data with a running sandbox; call `hold` once to do so.

    Args:
        process: the sandbox, with pipes for its three standard streams.
        ready_pipe: the read end of the pipe on which the sandbox reports that the program is
            isolated and ready to run.
        unsent: the bytes of the job that have not been sent yet.
        deadline: the latest time (`time.monotonic`) for the sandbox to become ready. Once it is
            ready, the latest time for it to end.
        seconds: how long the program may run once the sandbox is ready.
        answers: what the sandbox has written to its standard output.
        complaints: the last `MAX_COMPLAINT_BYTES` bytes of the sandbox's standard error.
        ready: whether the sandbox has reported that it is ready.
    """

    process: subprocess.Popen
    ready_pipe: FileIO
    unsent: bytes
    deadline: float
    seconds: float
    answers: bytearray = field(default_factory=bytearray)
    complaints: bytearray = field(default_factory=bytearray)
    ready: bool = False

    def hold(self) -> None:
        """Send the job and read all pipes until they close or a limit is reached.

        The limits are `deadline` and `MAX_ANSWER_BYTES`. The results are in `answers`, `complaints`
        and `ready`. All pipes are served concurrently, because either side may wait for the other.
        """
        stdin = self.process.stdin
        stdout = self.process.stdout
        stderr = self.process.stderr
        assert stdin and stdout and stderr
        receivers = {
            stdout.fileno(): self.receive_answer,
            stderr.fileno(): self.receive_complaint,
            self.ready_pipe.fileno(): self.receive_ready,
        }
        with selectors.DefaultSelector() as selector:
            os.set_blocking(stdin.fileno(), False)
            selector.register(stdin, selectors.EVENT_WRITE)
            for fd in receivers:
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map() and len(self.answers) <= MAX_ANSWER_BYTES:
                seconds_left = self.deadline - time.monotonic()
                events = selector.select(seconds_left) if seconds_left > 0 else []
                if not events:
                    return
                for key, _ in events:
                    if key.fileobj is stdin:
                        self.send(key.fd)
                        if not self.unsent:
                            selector.unregister(stdin)
                            stdin.close()
                        continue
                    chunk = os.read(key.fd, CHUNK_BYTES)
                    if chunk:
                        receivers[key.fd](chunk)
                    else:
                        selector.unregister(key.fileobj)

    def send(self, fd: int) -> None:
        try:
            sent = os.write(fd, self.unsent[:CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # the sandbox has ended
            sent = len(self.unsent)
        self.unsent = self.unsent[sent:]

    def receive_answer(self, chunk: bytes) -> None:
        self.answers += chunk

    def receive_complaint(self, chunk: bytes) -> None:
        self.complaints = (self.complaints + chunk)[-MAX_COMPLAINT_BYTES:]

    def receive_ready(self, _: bytes) -> None:
        if not self.ready:
            self.ready = True
            self.deadline = time.monotonic() + self.seconds + GRACE_SECONDS
