"""Sampler processes that begin with torch and transformers loaded.

`sampler: process` starts Python, which imports them for seconds. A test that is not about that
start forks the process from a server that has them. The fork gets the descriptors, the arguments
and the environment of the started process, and runs the same program.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpo_ext.samplers import process
from tests.support.forked import Forked, run_module

ADDRESS = "FORKED_SAMPLERS"  # the variable with the path of the server's socket
MESSAGE = 2**20  # bytes


def start_server(folder: Path) -> str:
    """Start a server that forks sampler processes; return its address.

    Args:
        folder: for its socket, so its path must be short.
    """
    address = str(folder / "forks")
    server = Forked(serve, address)
    server.wait_for("listening")
    return address


def use_forked_samplers() -> None:
    """Fork the sampler processes of this process, if the process that started it does so."""
    if ADDRESS in os.environ:
        process.start_beside = start_forked  # type: ignore[assignment]


class ForkedSampler:
    """A process that another one has forked, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int):
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended = select.poll()  # `select.select` takes no descriptor from 1,024 on
        self._ended.register(self._descriptor, select.POLLIN)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def poll(self) -> int | None:
        return -signal.SIGKILL if self._ended.poll(0) else None

    def wait(self) -> int:
        self._ended.poll()
        return -signal.SIGKILL


def start_forked(
    module: str, pipe: Connection, *words: Any, threads: int, keep: tuple[int, ...] = ()
) -> ForkedSampler:
    """Do what `start_beside` does, with a fork."""
    numbers = [1, 2, pipe.fileno(), *keep]
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    message = pickle.dumps((module, (pipe.fileno(), *words), numbers, variables, sys.path))
    with pipe, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ[ADDRESS])
        socket.send_fds(server, [message], numbers)
        return ForkedSampler(int(server.recv(64)))


def serve(address: str) -> None:
    """Fork a process for each connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a fork that ends is gone
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            message, received, _, _ = socket.recv_fds(connection, MESSAGE, 16)
            pid = os.fork()
            if pid == 0:
                listener.detach()
                connection.detach()
                module, words, numbers, variables, path = pickle.loads(message)
                become(module, words, numbers, received, variables, path)
            for descriptor in received:
                os.close(descriptor)
            with connection:
                connection.send(str(pid).encode())


def become(
    module: str,
    words: tuple[Any, ...],
    numbers: list[int],
    received: list[int],
    variables: dict[str, str],
    path: list[str],
) -> None:
    """Run a module in this fork as `python -m` would, and exit.

    Args:
        module: the module.
        words: its end of the pipe, as a descriptor, and its arguments after its parent's id.
        numbers: the descriptors that it inherits, as they are in the process that asked.
        received: the same descriptors, as they are here.
        variables: its environment.
        path: its import path.
    """
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        first_free = 1 + max(*numbers, *received)
        for place, descriptor in enumerate(received, first_free):
            os.dup2(descriptor, place)
        os.closerange(3, first_free)
        for place, number in enumerate(numbers, first_free):
            os.dup2(place, number)
        os.closerange(first_free, first_free + len(numbers))
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        pipe, *others = words
        run_module(module, *map(str, (pipe, os.getppid(), *others)))
        code = 0
    finally:
        os._exit(code)
