"""Trainers and server in two network namespaces, joined by one cable.

Neither sees the other's loopback.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.engine_parts import check_run, free_port, outside, steps_of, train_words, words
from tests.support.forked import LIMIT
from tests.support.places import REPO

pytestmark = pytest.mark.vllm
TRAINERS = "10.77.0.1"
SAMPLERS = "10.77.0.2"


def enter(process):
    """What a command begins with that is to run in the namespaces of a process."""
    return [
        "nsenter",
        "--target",
        str(process.pid),
        "--user",
        "--preserve-credentials",
        "--net",
        "--",
    ]


@pytest.fixture
def networks():
    """Processes that keep a namespace of trainers and one of samplers; nothing of it is left when
    they have ended.

    A user namespace around both makes that possible without root.
    """
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if not shutil.which(tool)]:
        pytest.skip(f"no network namespaces here: {', '.join(missing)} is not installed")
    held = []

    def hold(*words):
        stay = ["sh", "-c", "echo there; exec sleep 900"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        held.append(subprocess.Popen([*words, *stay], **pipes))
        if held[-1].stdout.readline() != "there\n":
            pytest.skip(f"no network namespaces here: {held[-1].stderr.read().strip()}")
        return held[-1]

    def ip(where, *words):
        subprocess.run([*enter(where), "ip", *words], check=True, capture_output=True)

    try:
        trainers = hold("unshare", "--user", "--map-root-user", "--net")
        samplers = hold(*enter(trainers), "unshare", "--net")
        cable = [
            "link",
            "add",
            "to-samplers",
            "type",
            "veth",
            "peer",
            "name",
            "to-trainers",
            "netns",
            str(samplers.pid),
        ]
        ip(trainers, *cable)
        for where, address, end in (
            (trainers, TRAINERS, "to-samplers"),
            (samplers, SAMPLERS, "to-trainers"),
        ):
            ip(where, "addr", "add", f"{address}/24", "dev", end)
            ip(where, "link", "set", end, "up")
            ip(where, "link", "set", "lo", "up")
        yield trainers, samplers
    finally:
        for process in held:
            process.kill()
            process.communicate()


def test_weights_travel_between_two_networks(engine_folder, tmp_path, networks, monkeypatch):
    monkeypatch.setenv(
        "VLLM_API_KEY", "secret"
    )  # without one a server refuses to listen at such an address
    trainers, samplers = networks
    place = {"vllm_mode": "server", "vllm_server_host": SAMPLERS, "vllm_server_port": free_port()}
    rate = {"learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_steps": 5}
    path = words(engine_folder, tmp_path, 2, **place, **rate, vllm_group_port=free_port())
    serve = [
        *enter(samplers),
        sys.executable,
        "-m",
        "grpo_ext",
        "serve",
        "--config",
        str(path),
        "--num_processes",
        "2",
    ]
    with (tmp_path / "serve.log").open("w") as log:
        server = subprocess.Popen(
            serve, stdout=log, stderr=subprocess.STDOUT, cwd=REPO, env=outside()
        )
    try:
        check_run([*enter(trainers), *train_words(path, 2)])  # it waits for the server
    finally:
        server.terminate()
        assert server.wait(LIMIT) == 0, (tmp_path / "serve.log").read_text()[-3000:]
    found = [entry["sampling/logp_difference/max"] for entry in steps_of(path)]
    assert len(found) == 5 and max(found) <= 1e-5
