"""A vLLM server of our own: started, watched, started again where it dies, and stopped with all its processes."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.http import PROBE_SECONDS, Line, who_answers

STOP_SECONDS = 20.0
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a launcher that starts trainers
LOG = "vllm_server.log"  # in the run's folder


class Server:
    """One vLLM server: the command `words`, which will answer at `url`, and whose output is added to the file `log`.

    `devices` is its `CUDA_VISIBLE_DEVICES`; `None` leaves that as it is.
    """

    def __init__(self, words: list[str], url: str, log: Path, devices: str | None = None):
        self.words, self.url, self.log = words, url, log
        self.environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}  # the endpoints that take weights
        if "--enable-lora" in words:
            self.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # those that take adapters
        for name in (*RANKS, "VLLM_CPU_KVCACHE_SPACE"):  # the last would win over the size that we ask for
            self.environment.pop(name, None)
        if devices is not None:
            self.environment["CUDA_VISIBLE_DEVICES"] = devices
        self.process: subprocess.Popen | None = None

    def start(self) -> subprocess.Popen:
        """Start it, without waiting until it answers; `ValueError` if something answers there already."""
        place = urlsplit(self.url)
        with suppress(OSError), socket.create_connection((place.hostname, place.port or 80), PROBE_SECONDS):
            raise ValueError(f"a server answers at {self.url} already: stop it, or set another vllm_server_port.")
        return self._launch()

    def _launch(self) -> subprocess.Popen:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.words, stdout=out, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )
        return self.process

    def code(self) -> int | None:
        """The exit code that it ended with; `None` while it runs."""
        return self.process.poll() if self.process else None

    def wait_ready(self, seconds: float) -> None:
        """Wait until it answers; `EngineFailure`, with the end of its log, if it ends before or takes more than `seconds`."""
        end = time.monotonic() + seconds
        while not answers(self.url):
            if (code := self.code()) is not None:
                raise EngineFailure(f"The vLLM server ended with code {code}:\n{self.last_lines()}")
            if time.monotonic() > end:
                raise EngineFailure(f"The vLLM server did not answer within {seconds:g} s:\n{self.last_lines()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End it and every process that it started."""
        if self.process is None:
            return
        _signal_all(self.process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        _signal_all(self.process, signal.SIGKILL)  # also what it left behind
        self.process.wait()

    def last_lines(self, number: int = 15) -> str:
        """The end of its log, and where the rest is."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:]
        return "\n".join([*lines, f"({self.log})"])

    @contextmanager
    def running(self, seconds: float, restarts: int) -> Iterator[None]:
        """Have it answer and, where it dies, start it again, so many times; stop it at the end.

        `EngineFailure` as `wait_ready`.
        """
        done = threading.Event()
        self.start()
        keeper = threading.Thread(target=self._keep, args=(done, restarts), daemon=True)
        try:
            self.wait_ready(seconds)
            keeper.start()
            yield
        finally:
            done.set()
            if keeper.is_alive():
                keeper.join()
            self.stop()

    def _keep(self, done: threading.Event, restarts: int) -> None:
        for number in range(1, restarts + 1):
            while (code := self.code()) is None:
                if done.wait(0.5):
                    return
            again = f"it is started again ({number} of {restarts}). What it said is in {self.log}."
            print(f"The vLLM server ended with code {code}; {again}", flush=True)
            self.stop()
            self._launch()


def _signal_all(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def answers(url: str) -> bool:
    """Whether a vLLM server there is healthy, and has the key of the environment."""
    try:
        return bool(who_answers(Line(PROBE_SECONDS), url))
    except ConnectionError:
        return False
