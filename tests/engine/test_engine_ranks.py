"""Two ranks and vLLM.

What they learn is what one learns, from a server at another address or from an engine in each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
import torch

from grpo_ext import load_recipe
from grpo_ext.vllm.server import server_of
from grpo_ext.vllm.weight_group import own_address
from tests.support.engine_parts import (
    WANDERING,
    check_run,
    check_truncated,
    free_port,
    outside,
    steps_of,
    train_words,
    words,
)
from tests.support.forked import LIMIT
from tests.support.places import REPO

pytestmark = pytest.mark.vllm
CLOSE = 1e-5
# Linux answers on all of 127.0.0.0/8
HERE = "127.0.0.1"
THERE = "127.0.0.2"


@pytest.fixture(scope="module")
def server(engine_folder, tmp_path_factory):
    """A server that listens at `THERE` alone, and what a recipe says of it."""
    where = {"vllm_mode": "server", "vllm_server_host": THERE, "vllm_server_port": free_port()}
    path = words(engine_folder, tmp_path_factory.mktemp("server"), 1, **where)
    server = server_of(load_recipe(path))
    with server.running(seconds=LIMIT, restarts=0):
        yield SimpleNamespace(process=server.process, where=where)


def train(path, ranks):
    """Train as a recipe says, and check that the log-probs are those of the server or the engines.

    What was logged.
    """
    assert f"{ranks} rank" in check_run(train_words(path, ranks))
    return close_steps(path)


def close_steps(path):
    steps = steps_of(path)
    assert len(steps) == json.loads(path.read_text())["max_steps"]
    assert max(entry["sampling/logp_difference/max"] for entry in steps) <= CLOSE
    return steps


def test_two_ranks_have_the_losses_of_one(engine_folder, tmp_path, server):
    """Both draw the same from the server, so that their losses are the same to rounding."""
    options = {**server.where, "generation_kwargs": {"seed": 1}}
    found = []
    for ranks in (1, 2):
        path = words(engine_folder, tmp_path, ranks, vllm_group_port=free_port(), **options)
        found.append(train(path, ranks))
    assert [entry["reward"] for entry in found[0]] == pytest.approx(
        [entry["reward"] for entry in found[1]], abs=1e-7
    )
    assert [entry["loss"] for entry in found[0]] == pytest.approx(
        [entry["loss"] for entry in found[1]], abs=1e-5
    )
    norms = [[entry["grad_norm"] for entry in steps] for steps in found]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3) and min(norms[0]) > 0


def test_episodes_of_different_lengths_come_back_to_the_rank_that_asked(
    engine_folder, tmp_path, server
):
    """Another rank's completion would have other log-probs than the trainer finds for it."""
    options = {
        **server.where,
        "environment": WANDERING,
        "max_completion_length": 60,
        "max_steps": 4,
    }
    path = words(engine_folder, tmp_path, 2, vllm_group_port=free_port(), **options)
    turns = [entry["episodes/turns"] for entry in train(path, 2)]
    assert 1 < min(turns) < 4


def sockets(process):
    """Own end, other end and status of every TCP socket of a process and its children."""
    found = set()
    for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            found |= {
                (plain(s.laddr), plain(s.raddr), s.status) for s in one.net_connections("tcp")
            }
    return found


def plain(address):
    return (address.ip.removeprefix("::ffff:"), address.port) if address else None


def test_two_ranks_and_a_server_at_another_address(engine_folder, tmp_path, server):
    """Weights travel between the trainers' address and the worker, whatever address the server
    answers at.
    """
    assert own_address(THERE) == HERE  # a listener there is one that the server reaches
    port = server.where["vllm_server_port"]
    group = free_port()
    options = {
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": 5,
        "vllm_group_port": group,
    }
    path = words(engine_folder, tmp_path, 2, **server.where, **options)
    samplers = set()
    trainers = set()
    log = tmp_path / "run.log"
    with log.open("w") as out:
        run = subprocess.Popen(
            train_words(path, 2), stdout=out, stderr=subprocess.STDOUT, cwd=REPO, env=outside()
        )
    try:
        while run.poll() is None:
            samplers |= sockets(server.process)
            with suppress(psutil.Error):
                trainers |= sockets(run)
            time.sleep(0.5)
    finally:
        run.terminate()
    assert run.returncode == 0, log.read_text()[-3000:]
    close_steps(path)
    assert {own[0] for own, _, status in samplers if own[1] == port and status == "LISTEN"} == {
        THERE
    }
    between = {
        (own, other)
        for own, other, status in samplers
        if status == "ESTABLISHED" and (other, own, status) in trainers
    }
    weights = {
        (own, other) for own, other in between if own != (THERE, port)
    }  # no requests, which come and go
    assert (HERE, group) in {
        other for _, other in weights
    }  # the worker came to the trainers' store
    assert {end[0] for link in weights for end in link} == {HERE}
    assert any(other[1] != group for _, other in weights)  # and gloo made a link of its own


# All that shapes a step at once. A generation serves two steps, so that checkpoint 5 lies in the
# midst of one.
FEATURES = {
    "reward_funcs": ["fifth"],
    **{
        "group_filter": "refill",
        "max_staleness": 2,
        "curriculum": "adaptive",
        "num_iterations": 2,
        "beta": 0.04,
    },
    **{
        "top_p": 0.95,
        "top_k": 20,
        "learning_rate": 1e-2,
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 5,
    },
    **{"use_peft": True, "lora_target_modules": "all-linear", "lora_r": 8, "lora_dropout": 0.05},
}


def run_features(path):
    """Two ranks that keep their trained weights when they end; what was logged of each step."""
    program = (
        "import sys; from grpo_ext.recipe.load import load_recipe; from grpo_ext.run.launch "
        "import launch; "
        "words = sys.argv[1:]; sys.exit(launch('tests.support.weights_of_ranks', words, "
        "load_recipe(words[1]), 2))"
    )
    said = check_run([sys.executable, "-c", program, "--config", str(path)])
    one, two = (torch.load(path.with_suffix("") / f"weights-{rank}.pt") for rank in (0, 1))
    assert one.keys() == two.keys() and all("lora_" in name for name in one)
    assert all(torch.equal(weight, two[name]) for name, weight in one.items())
    assert (
        max(weight.abs().max().item() for name, weight in one.items() if "lora_B" in name) > 5e-3
    )  # it was 0
    return said, steps_of(path)


def check_features(path):
    """A whole run, and the second half of it once more from its checkpoint; what both logged."""
    said, whole = run_features(path)
    assert "Starting without a checkpoint" in said
    shutil.rmtree(path.with_suffix("") / "checkpoint-10")
    said, again = run_features(path)
    assert f"Resuming from {path.with_suffix('') / 'checkpoint-5'}" in said
    for steps in (whole, again):
        assert [entry["step"] for entry in steps] == [*range(1, 11)]
        generations = [entry for entry in steps if "groups/kept" in entry]
        assert [entry["step"] for entry in generations] == [1, 3, 5, 7, 9]
        check_truncated([entry["sampling/logp_difference/max"] for entry in generations], CLOSE)
        assert all(entry["groups/missing"] == 0 for entry in generations)
        for name in ("refilled", "carried", "reused"):
            assert sum(entry[f"groups/{name}"] for entry in generations) > 0, name
        assert max(entry["kl"] for entry in steps) > 1e-3
    assert whole[:5] == again[:5]
    return whole, again


def test_everything_at_once_beside_a_server(engine_folder, tmp_path, server):
    options = {**server.where, "vllm_group_port": free_port(), "generation_kwargs": {"seed": 1}}
    whole, again = check_features(words(engine_folder, tmp_path, 2, **options, **FEATURES))
    for name in ("loss", "kl", "grad_norm"):
        assert [entry[name] for entry in whole] == pytest.approx(
            [entry[name] for entry in again], abs=1e-5
        ), name
    assert [entry.get("reward") for entry in whole] == [
        entry.get("reward") for entry in again
    ]  # of each generation


def test_everything_at_once_with_an_engine_in_each(engine_folder, tmp_path):
    check_features(words(engine_folder, tmp_path, 2, vllm_mode="colocate", **FEATURES))


def test_a_run_with_an_engine_ends_without_a_traceback(engine_folder, tmp_path):
    """The engine's groups end before the process group that they belong to."""
    path = words(engine_folder, tmp_path, 1, vllm_mode="colocate", max_steps=1)
    assert "Traceback" not in check_run(train_words(path, 1))


@pytest.mark.parametrize(
    "adapter",
    [{}, {"use_peft": True, "lora_dropout": 0, "vllm_sync_adapter": "adapter"}],
    ids=["full", "adapter"],
)
def test_two_ranks_each_with_an_engine(engine_folder, tmp_path, adapter):
    train(words(engine_folder, tmp_path, 2, vllm_mode="colocate", **adapter), 2)
