"""The store through which an engine's workers find the trainer, at the first port that can be
opened.
"""

from __future__ import annotations

import socket

import pytest

from grpo_ext.vllm.weight_group import PORTS, listening_store


def test_a_port_in_use_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        store = listening_store("127.0.0.1", port, 1)
    assert port < store.port < port + PORTS


@pytest.mark.parametrize(
    ("address", "port", "cause"), [("127.0.0.1", 65536, "0-65535"), ("192.0.2.1", 51216, "assign")]
)
def test_ports_that_cannot_be_opened_are_named_with_the_cause(address, port, cause):
    with pytest.raises(ConnectionError, match=f"no port from {port} to .* of {address}.*{cause}"):
        listening_store(address, port, 1)
