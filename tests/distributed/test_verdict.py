"""What the main process alone can see is refused on every rank, so that none waits for the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.multiprocessing
from accelerate import Accelerator

from grpo_ext.run.ranks import leave_ranks
from grpo_ext.samplers.choose import _refuse_raw_logprobs

pytestmark = pytest.mark.slow


def server_info(mode):
    if mode is None:
        raise ConnectionError("no answer")
    return {"model_config": {"logprobs_mode": mode}}


def ask(rank, port, folder, mode):
    import os

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    accelerator = Accelerator(cpu=True)
    client = SimpleNamespace(get_server_info=lambda: server_info(mode))
    trainer = SimpleNamespace(accelerator=accelerator, vllm_generation=SimpleNamespace(vllm_client=client))
    if rank:
        del trainer.vllm_generation  # only the main process talks to the server
    try:
        _refuse_raw_logprobs(trainer)
        said = "taken"
    except (ValueError, ConnectionError) as error:
        said = str(error)
    (folder / f"{rank}.txt").write_text(f"{accelerator.num_processes} {said}")
    del trainer, accelerator
    leave_ranks()


@pytest.mark.parametrize(
    "mode, words",
    [("raw_logprobs", "2 The vLLM server returns raw"), ("processed_logprobs", "2 taken"), (None, "2 no answer")],
)
def test_both_ranks_hear_of_the_server(tmp_path, unused_port, mode, words):
    torch.multiprocessing.spawn(ask, args=(unused_port, tmp_path, mode), nprocs=2)
    for rank in (0, 1):
        assert (tmp_path / f"{rank}.txt").read_text().startswith(words)


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
