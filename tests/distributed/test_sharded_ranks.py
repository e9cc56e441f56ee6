"""Ten steps on one rank, on two, and on two that each hold half of the model (FSDP2).

The same losses and the same weights.
"""

from __future__ import annotations

import pytest

from tests.support.sharded_run import check_same, launched, ten_steps

pytestmark = pytest.mark.slow


def test_two_ranks_whole_and_sharded_learn_what_one_does(tiny_folder, tmp_path):
    one = ten_steps(tiny_folder, tmp_path, "plain", 1)
    for how, share in (("plain", 1.0), ("fsdp2", 0.5)):
        check_same(one, ten_steps(tiny_folder, tmp_path, how, 2), share)
    entropy = one["curves"]["entropy"]
    assert entropy[4] != pytest.approx(
        entropy[0], abs=1e-5
    )  # the same prompts again, and other weights


def test_steps_without_a_finite_gradient_are_left_out_on_all_ranks(tiny_folder, tmp_path):
    launched("fsdp2", 2, tmp_path, "guard", str(tiny_folder))
