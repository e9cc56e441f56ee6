"""Server mode on a CPU.

Weights travel by gloo to a real server, and its log-probs are those of the trainer.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading

import pytest
import requests
import torch
from transformers import TrainerCallback

from tests.support.engine_parts import (
    STEPS,
    check_truncated,
    differences,
    free_port,
    lora,
    make_trainer,
    running_server,
    without_sync,
)
from tests.support.forked import LIMIT
from tests.support.logs import entries_with
from tests.support.oracle import token_logps

pytestmark = pytest.mark.vllm
CLOSE = 1e-5


@pytest.fixture(scope="module")
def server(engine_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with running_server(engine_folder, folder, max_completion_length=16) as server:
        yield server


@pytest.fixture
def place(server):
    where = {
        "vllm_mode": "server",
        "vllm_server_base_url": f"{server.url}/",
        "vllm_group_port": free_port(),
    }
    return {**where, "vllm_server_timeout": LIMIT}


def test_five_steps(engine_folder, tmp_path, place):
    trainer = make_trainer(engine_folder, tmp_path, **place)
    assert trainer.vllm_generation.dtype() == "float32"
    assert max(differences(trainer)) <= CLOSE


def test_the_server_samples_while_the_trainer_trains(engine_folder, tmp_path, place):
    """The first generation is of the step's weights, the others are of those before.

    Engine and trainer differ by rounding.
    """
    trainer = make_trainer(engine_folder, tmp_path, overlap="one_step", **place)
    found = differences(trainer)
    assert found[0] <= CLOSE and min(found[2:]) > 10 * CLOSE  # the weights have moved since
    steps = entries_with(trainer, "loss")
    assert [entry["overlap/age"] for entry in steps] == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert max(entry["sampling/sync_difference"] for entry in steps[:-1]) <= CLOSE


def test_a_resumed_run_has_the_generation_that_was_under_way(engine_folder, tmp_path, place):
    del place["vllm_group_port"]  # each trainer has its own
    options = {
        "overlap": "one_step",
        "generation_kwargs": {"seed": 1},
        "save_strategy": "steps",
        "save_steps": 3,
        **place,
    }
    runs = []
    for resumes in (False, True):
        trainer = make_trainer(engine_folder, tmp_path, **options, vllm_group_port=free_port())
        trainer.train(resume_from_checkpoint=resumes)
        runs.append(entries_with(trainer, "loss"))
        if not resumes:
            shutil.rmtree(tmp_path / f"checkpoint-{STEPS}")
    whole, again = ([entry for entry in run if entry["step"] <= 4] for run in runs)
    assert [entry["step"] for entry in again] == [1, 2, 3, 4] and again[3]["overlap/age"] == 1.0
    # step 4 trains on what was under way at step 3; later steps sample anew, and rounding may
    # change a token
    assert [entry["reward"] for entry in whole] == [entry["reward"] for entry in again]
    for name in ("loss", "grad_norm"):
        assert [entry[name] for entry in whole] == pytest.approx(
            [entry[name] for entry in again], abs=1e-5
        ), name


def test_tokens_that_went_on_under_new_weights_are_of_these(engine_folder, tmp_path, place):
    trainer = make_trainer(engine_folder, tmp_path, overlap="one_step", partial_rollouts=4, **place)
    weights = []
    made = []
    take = trainer.parts.generations.ahead.take

    class Keep(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            weights.append({name: p.detach().clone() for name, p in model.named_parameters()})

    def noting(step):
        found = take(step)
        made.extend([found] if found is not None else [])
        return found

    trainer.parts.generations.ahead.take = noting
    trainer.add_callback(Keep())
    trainer.train()
    rows = [
        (g.prompt_ids[i], ids, g.policy_step[i], g.sampling_logps[i])
        for g in made
        for i, ids in enumerate(g.completion_ids)
    ]
    assert len(rows) == 8 * (STEPS - 1) and any(len(set(versions)) > 1 for *_, versions, _ in rows)
    for version, given in enumerate(weights):
        trainer.model.load_state_dict(given, strict=False)
        for prompt, ids, versions, logps in (row for row in rows if version in row[2]):
            with torch.no_grad():
                wanted = token_logps(trainer.model, prompt, ids)
            off = [
                abs(float(wanted[t] - logps[t])) for t, own in enumerate(versions) if own == version
            ]
            assert max(off) < 1e-4


def test_a_server_that_hangs_under_way_is_asked_again(engine_folder, tmp_path, place, server):
    trainer = make_trainer(
        engine_folder, tmp_path, overlap="one_step", vllm_server_request_timeout=10, **place
    )
    client = trainer.vllm_generation.vllm_client
    calls = []
    plain = trainer.vllm_generation.start

    def start(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            os.killpg(server.process.pid, signal.SIGSTOP)
            threading.Timer(20, os.killpg, (server.process.pid, signal.SIGCONT)).start()
        plain(*args, **kwargs)

    trainer.vllm_generation.start = start
    trainer.train()
    assert trainer.state.global_step == STEPS and client.failure is None


def test_five_steps_of_an_adapter(engine_folder, tmp_path, place):
    """The next run finds the weights of the last one in the server, and gives it its own."""
    assert max(differences(make_trainer(engine_folder, tmp_path, lora(), **place))) <= CLOSE


def test_truncated_sampling_is_scored_as_sampled(engine_folder, tmp_path, place):
    sampling = {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "temperature": 0.7}
    check_truncated(differences(make_trainer(engine_folder, tmp_path, **sampling, **place)), CLOSE)


def test_control_without_sync(engine_folder, tmp_path, place):
    trainer = make_trainer(engine_folder, tmp_path, vllm_sync_check_steps=0, **place)
    trainer.vllm_generation.sync_weights()
    found = differences(without_sync(trainer))
    assert found[0] <= CLOSE
    assert found[-1] > 0.1


def test_weights_of_another_run_are_noticed(engine_folder, tmp_path, place, server):
    """Another run gives the server its weights between two of our generations.

    The next one gets ours first.
    """
    trainer = make_trainer(engine_folder, tmp_path, **place)
    generation = trainer.vllm_generation
    generation.sync_weights()
    requests.post(
        f"{server.url}/update_weight_version", json={"new_version": "theirs"}, timeout=LIMIT
    ).raise_for_status()
    syncs = generation.syncs
    answer = generation.generate([[5, 6, 7]] * 4, None, 4)
    assert generation.syncs == syncs + 1 and len(answer[1]) == 4
    version = requests.get(f"{server.url}/weight_info", timeout=LIMIT).json()["weight_version"]
    assert version == generation.vllm_client.version


def test_hung_server_is_asked_again(engine_folder, tmp_path, place, server):
    """It stops in the middle of a request and goes on half a minute later; we wait ten seconds."""
    trainer = make_trainer(engine_folder, tmp_path, vllm_server_request_timeout=10, **place)
    generation = trainer.vllm_generation
    generation.sync_weights()
    os.killpg(server.process.pid, signal.SIGSTOP)
    woken = threading.Event()

    def wake():
        woken.set()
        os.killpg(server.process.pid, signal.SIGCONT)

    waking = threading.Timer(30, wake)
    waking.start()
    syncs = generation.syncs
    answer = generation.generate([[5, 6, 7]] * 4, None, 4)
    assert woken.is_set()  # no answer came before
    assert generation.syncs > syncs and len(answer[1]) == 4
    waking.join()


def test_a_taken_port_for_the_weights_is_passed_over(engine_folder, tmp_path, place):
    """The worker must not look for the trainer where another program listens."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        trainer = make_trainer(
            engine_folder, tmp_path, **{**place, "vllm_group_port": other.getsockname()[1]}
        )
        assert max(differences(trainer)) <= CLOSE


def test_refused_request_is_not_asked_again(engine_folder, tmp_path, place):
    from grpo_ext.vllm import EngineFailure

    generation = make_trainer(engine_folder, tmp_path, **place).vllm_generation
    with pytest.raises(EngineFailure, match="rejected a request: StatusError: Request failed: 400"):
        generation.generate([[5] * 300], None, 1)  # longer than the server takes


def test_what_a_server_runs_with(engine_folder, tmp_path, place):
    client = make_trainer(engine_folder, tmp_path, **place).vllm_generation.vllm_client
    assert client.get_server_info()["model_config"]["logprobs_mode"] == "processed_logprobs"
    client.base_url += "/elsewhere"
    with pytest.raises(RuntimeError, match="VLLM_SERVER_DEV_MODE=1"):
        client.get_server_info()


def test_another_server_on_the_port_is_told(server):
    with pytest.raises(ValueError, match="a server is already running at"):
        type(server)(server.command, server.url, server.log).start()
