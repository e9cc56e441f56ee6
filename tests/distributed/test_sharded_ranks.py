"""Ten steps on one rank, on two, and on two that each hold half of the model (FSDP2): the same losses and the same weights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from conftest import REPO

pytestmark = pytest.mark.slow
PROGRAM = str(REPO / "tests" / "distributed" / "sharded_run.py")


def ten_steps(model, out, how, ranks):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--rdzv_backend", "c10d"]
    done = subprocess.run(
        [*launch, "--rdzv_endpoint", "127.0.0.1:0", PROGRAM, str(model), str(out), how],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(out / f"{how}-{ranks}.pt")
    assert found["ranks"] == ranks and found["sharded"] == (how == "fsdp2")
    assert all(len(curve) == 10 for curve in found["curves"].values())
    return found


def test_two_ranks_whole_and_sharded_learn_what_one_does(tiny_folder, tmp_path):
    one = ten_steps(tiny_folder, tmp_path, "plain", 1)
    size = sum(weight.numel() for weight in one["weights"].values())
    for how, share in (("plain", 1.0), ("fsdp2", 0.5)):
        two = ten_steps(tiny_folder, tmp_path, how, 2)
        assert sum(two["held"].values()) == pytest.approx(share * size, rel=0.01)
        for name, curve in one["curves"].items():
            assert two["curves"][name] == pytest.approx(curve, abs=1e-5), (how, name)
        assert two["weights"].keys() == one["weights"].keys()
        for name, weight in one["weights"].items():
            torch.testing.assert_close(two["weights"][name], weight, atol=1e-5, rtol=0)
    entropy = one["curves"]["entropy"]
    assert entropy[4] != pytest.approx(entropy[0], abs=1e-5)  # the same prompts again, and other weights
