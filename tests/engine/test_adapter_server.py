"""A server that reads the adapter from the run's folder.

Exact after every step, and it is noticed where it has another.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import requests

from tests.support.engine_parts import (
    differences,
    lora,
    make_trainer,
    running_server,
    without_sync,
)
from tests.support.forked import LIMIT

pytestmark = pytest.mark.vllm
CLOSE = 1e-5
ADAPTER = {"use_peft": True, "lora_r": 8, "vllm_sync_adapter": "adapter"}


@pytest.fixture(scope="module")
def server(engine_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running_server(engine_folder, folder, **ADAPTER, max_completion_length=16) as server:
        yield server


@pytest.fixture
def place(server):
    where = {
        "vllm_mode": "server",
        "vllm_server_base_url": server.url,
        "vllm_sync_adapter": "adapter",
    }
    return {**where, "vllm_server_timeout": LIMIT}


def models(server) -> list[str]:
    answer = requests.get(f"{server.url}/v1/models", timeout=LIMIT).json()
    return [model["id"] for model in answer["data"]]


def test_five_steps(engine_folder, tmp_path, place, server):
    trainer = make_trainer(engine_folder, tmp_path, lora(), **place)
    assert max(differences(trainer)) <= CLOSE
    assert models(server) == [
        str(engine_folder),
        trainer.vllm_generation.vllm_client.model,
    ]  # the last alone
    assert not list(tmp_path.glob("vllm-adapter-*"))


def test_control_without_sync(engine_folder, tmp_path, place):
    trainer = make_trainer(engine_folder, tmp_path, lora(), vllm_sync_check_steps=0, **place)
    trainer.vllm_generation.sync_weights()
    found = differences(without_sync(trainer))
    assert found[0] <= CLOSE
    assert found[-1] > 0.1


def test_a_server_without_our_adapter_is_given_it(engine_folder, tmp_path, place, server):
    generation = make_trainer(engine_folder, tmp_path, lora(), **place).vllm_generation
    generation.sync_weights()
    lost = generation.vllm_client.model
    requests.post(
        f"{server.url}/v1/unload_lora_adapter", json={"lora_name": lost}, timeout=LIMIT
    ).raise_for_status()
    answer = generation.generate([[5, 6, 7]] * 4, None, 4)
    assert generation.syncs == 2 and len(answer[1]) == 4
    assert lost not in models(server) and generation.vllm_client.model in models(server)


def test_a_folder_that_the_server_does_not_see_is_told(engine_folder, tmp_path, place):
    client = make_trainer(engine_folder, tmp_path, lora(), **place).vllm_generation.vllm_client
    client.load_adapter(nullcontext(str(tmp_path / "elsewhere")))
    assert (
        "Request failed: 404" in client.failure.message
        and "Make output_dir available to the server at the same path" in client.failure.message
        and client.failure.refused
    )


def test_a_server_for_smaller_ranks_is_refused(engine_folder, tmp_path, place):
    config = lora()
    config.r = 16
    with pytest.raises(
        ValueError, match=r"does not accept LoRA rank 16.* --enable-lora --max-lora-rank 16"
    ):
        make_trainer(engine_folder, tmp_path, config, **place)
