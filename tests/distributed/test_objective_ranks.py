"""Two ranks and one have the same gradient for the same completions."""

from __future__ import annotations

import sys

import pytest
from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))
import invariance

pytestmark = pytest.mark.slow


def test_two_ranks_have_the_gradient_of_one(tiny_folder, monkeypatch):
    import trl.trainer.grpo_trainer as module

    monkeypatch.setattr(module, "shuffle_sequence_dict", module.shuffle_sequence_dict)
    invariance.keep_order()
    cuts = [("grpo", 1, 1), ("grpo", 4, 2), ("bnpo", 2, 4), ("dr_grpo", 8, 8), ("vespo", 2, 1), ("luspo", 2, 2)]
    jobs = [(*cut, True) for cut in cuts] + [("bnpo", 4, 4, False)]
    found = invariance.on_two_ranks(tiny_folder, jobs)
    for (loss_type, ga, spg, ours), gradient in zip(jobs, found, strict=True):
        numbers = invariance.first_of_two_ranks(ga, spg)
        one = invariance.gradient(tiny_folder, loss_type, 1, 1, ours, numbers=numbers)
        difference = invariance.apart(gradient, one)
        # TRL's own, the control, moves
        assert difference < 1e-5 if ours else difference > 1e-3, (loss_type, ga, spg, difference)
