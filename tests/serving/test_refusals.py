"""A request that a server refuses is not sent again; any other failure is.

The status decides, never a text.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from grpo_ext.common.http import StatusError
from grpo_ext.samplers.server_failure import ServerFailure
from grpo_ext.samplers.vllm_generation import OurVLLM
from grpo_ext.vllm import EngineFailure
from tests.support.bad_servers import WELL, choice, engine_client, reply, routes, serving

GOOD = [choice([5, 6], [1, 2]), choice([7], [1, 2])]
ASKED = {"prompts": [[1, 2]], "n": 2, "max_tokens": 3, "logprobs": 0}


class Engine(OurVLLM):
    """The sampler before a real client, without a model: nothing is pushed."""

    def __init__(self, client, retries):
        self.mode = "server"
        self.options = SimpleNamespace(vllm_server_retries=retries)
        self.accelerator = SimpleNamespace(is_main_process=True, process_index=0)
        self.server_timeout = 60.0
        self.server_base_url = client.base_url
        self.vllm_client = client
        client.init_communicator = lambda device: None
        client._device = "cpu"
        self.pushed = self.syncs = 0

    def _push(self):
        self.pushed += 1

    def ask(self):
        return self._until_answered(lambda: self.vllm_client.generate(**ASKED))


class Server:
    """Answers the first requests for completions with a status, and later ones with completions."""

    def __init__(self, status, times, body):
        self.status, self.times, self.body, self.asked = status, times, body, 0
        self.well = routes({**WELL, "/v1/completions": {"choices": GOOD}})

    def __call__(self, connection, path, headers, body):
        if path != "/v1/completions":
            self.well(connection, path, headers, body)
            return
        self.asked += 1
        if self.asked <= self.times:
            connection.sendall(reply(self.body, self.status))
        else:
            self.well(connection, path, headers, body)


TEXTS = [b"", b"Request failed: 400, bad", b"\x1b[2J: Request failed: 404"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_refused_request_is_sent_once(status, text):
    server = Server(status, 99, text)
    with serving(server) as base:
        engine = Engine(engine_client(base), retries=3)
        with pytest.raises(EngineFailure, match="rejected a request: StatusError") as told:
            engine.ask()
    assert server.asked == 1 and engine.pushed == 0
    assert str(told.value).isprintable() and f"Request failed: {status}" in str(told.value)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("status", [204, 302, 408, 425, 429, 500, 503])
def test_any_other_status_is_asked_again(status, text):
    server = Server(status, 2, text)
    with serving(server) as base:
        engine = Engine(engine_client(base), retries=2)
        answer = engine.ask()
    assert answer["completion_ids"] == [[5, 6], [7]]
    assert server.asked == 3 and engine.pushed == engine.syncs == 2


def test_a_server_that_stays_busy_did_not_come_back():
    server = Server(429, 99, b"")
    with serving(server) as base:
        engine = Engine(engine_client(base), retries=1)
        with pytest.raises(EngineFailure, match=r"retries: 1`\): StatusError: Request failed"):
            engine.ask()
    assert server.asked == 2


def test_the_text_of_an_error_decides_nothing():
    told = ": Request failed: 400, no"
    assert not ServerFailure.of(ConnectionError(told)).refused
    assert not ServerFailure.of(Exception(f"x{told}")).refused
    assert ServerFailure.of(StatusError(400, "well")).refused
    assert ServerFailure.of(ValueError("no such model.")).message == "ValueError: no such model"
    assert not ServerFailure.of(StatusError(500, told)).refused


def test_a_failure_is_one_short_line():
    message = ServerFailure.of(RuntimeError("a\r\n\x1b[31m\u2028b " * 200)).message
    assert message.isprintable() and len(message) < 320 and message.startswith("RuntimeError: a ")


def test_images_that_a_server_refuses_are_refused():
    from PIL import Image

    render = "/v1/chat/completions/render"
    images = [[Image.new("RGB", (8, 8))]]
    with serving(routes(WELL, otherwise=None)) as base:
        client = engine_client(base)
        assert client.image_features(images) == [None]
        assert not client.failure.refused  # the server lacks the path: TRL says how to start it

    def answer(connection, path, headers, body):
        if path == render:
            connection.sendall(reply(b"too large", 413))
        else:
            routes(WELL)(connection, path, headers, body)

    with serving(answer) as base:
        client = engine_client(base)
        assert client.image_features(images) == [None]
        assert client.failure.refused and client.failure.status == 413


@pytest.mark.parametrize("status", [400, 401, 404])
def test_another_program_at_the_port_is_no_refusal(status):
    """The run waits for its server to come back."""
    with serving(lambda connection, *_: connection.sendall(reply({}, status))) as other:
        with serving(routes(WELL)) as base:
            client = engine_client(base)
        client.base_url = other
        client.version = "1"
        assert client.generate(**ASKED)["completion_ids"] == []
        assert client.failure is not None and not client.failure.refused
