"""Ten steps on one rank, on two, and on two that each hold half of the model (FSDP2): the same losses and the same weights."""

from __future__ import annotations

import pytest
from sharded_run import check_same, ten_steps

pytestmark = pytest.mark.slow


def test_two_ranks_whole_and_sharded_learn_what_one_does(tiny_folder, tmp_path):
    one = ten_steps(tiny_folder, tmp_path, "plain", 1)
    for how, share in (("plain", 1.0), ("fsdp2", 0.5)):
        check_same(one, ten_steps(tiny_folder, tmp_path, how, 2), share)
    entropy = one["curves"]["entropy"]
    assert entropy[4] != pytest.approx(entropy[0], abs=1e-5)  # the same prompts again, and other weights
