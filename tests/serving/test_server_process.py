"""A server's process: started, watched, started again, stopped with its children.

A web server stands for vLLM's start-up.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.server import Server, answers
from tests.support.forked import LIMIT
from tests.support.processes import gone, wait_until

WEB = """
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"version": "0.31.0", "data": [{"id": "m"}]}')
child = subprocess.Popen(["sleep", "6000"])
print("child", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-c", WEB, str(port)]
    server = Server(words, f"http://127.0.0.1:{port}", tmp_path / "run" / "vllm_server.log")
    yield server
    server.stop()


def test_starts_again_and_stops_with_its_children(server, capsys):
    with server.running(seconds=LIMIT, restarts=1):
        first = server.process.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.process.pid != first and answers(server.url))
    assert "exited with code -9; restarting it (1 of 1)" in capsys.readouterr().out
    said = [line.split() for line in server.log.read_text().splitlines()]
    children = [int(words[1]) for words in said if words[0] == "child"]
    assert len(children) == 2
    assert gone(children)
    assert not answers(server.url)


def test_a_start_that_fails_shows_the_log(server):
    server.command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    with (
        pytest.raises(EngineFailure, match=r"exited with code 3:\nno such model"),
        server.running(LIMIT, restarts=5),
    ):
        raise AssertionError("it never answered")


def test_a_start_that_takes_too_long_ends(server):
    server.command = ["sh", "-c", "echo loading; exec sleep 6000"]
    with (
        pytest.raises(EngineFailure, match=r"was not ready within 3 s.*log:\nloading"),
        server.running(3, restarts=5),
    ):
        raise AssertionError("it never answered")
    assert server.process.returncode is not None


def test_launchers_variables_are_kept_from_it(server, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert "WORLD_SIZE" not in Server(server.command, server.url, server.log).environment
