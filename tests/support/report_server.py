"""A live report on a port of this machine, and requests to it."""

from __future__ import annotations

import http.client
import threading
from contextlib import contextmanager

from grpo_ext.observe.report.serve import ReportServer
from tests.support.forked import LIMIT


@contextmanager
def served(*paths, **settings):
    with ReportServer(list(paths), 0, **settings) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, method="GET", host=None, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT)
    connection.request(method, path, body, {"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found
