"""What only the main process can see is refused on every rank, so that none waits."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from accelerate import Accelerator

from grpo_ext.run.output_dir import hold_folder
from grpo_ext.run.ranks import leave_ranks
from grpo_ext.samplers.choose import _refuse_raw_logprobs
from tests.support.forked import on_ranks

pytestmark = pytest.mark.slow


def server_info(mode):
    if mode is None:
        raise ConnectionError("no answer")
    return {"model_config": {"logprobs_mode": mode}}


def ask(folder, mode):
    accelerator = Accelerator(cpu=True)
    rank = int(os.environ["RANK"])
    client = SimpleNamespace(get_server_info=lambda: server_info(mode))
    trainer = SimpleNamespace(
        accelerator=accelerator, vllm_generation=SimpleNamespace(vllm_client=client)
    )
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
    [
        ("raw_logprobs", "2 The vLLM server returns raw"),
        ("processed_logprobs", "2 taken"),
        (None, "2 no answer"),
    ],
)
def test_both_ranks_hear_of_the_server(tmp_path, mode, words):
    on_ranks(2, ask, tmp_path, mode)
    for rank in (0, 1):
        assert (tmp_path / f"{rank}.txt").read_text().startswith(words)


def take_folder(folder):
    Accelerator(cpu=True)
    try:
        hold_folder(SimpleNamespace(output_dir=folder / "run"))
        answer = "held"
    except (ValueError, OSError) as error:
        answer = type(error).__name__
    (folder / f"{os.environ['RANK']}.txt").write_text(answer)
    leave_ranks()


@pytest.mark.parametrize(("is_free", "answer"), [(True, "held"), (False, "IsADirectoryError")])
def test_both_ranks_hear_that_the_folder_cannot_be_locked(tmp_path, is_free, answer):
    if not is_free:
        (tmp_path / "run" / ".lock").mkdir(parents=True)
    on_ranks(2, take_folder, tmp_path)
    for rank in (0, 1):
        assert (tmp_path / f"{rank}.txt").read_text() == answer
