"""Two ranks and one have the same gradient for the same completions."""

from __future__ import annotations

import pytest
import torch

from benchmarks import invariance
from grpo_ext.step import feed
from tests.support.fixed_completions import LOSSES, apart, keep_order
from tests.support.forked import on_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_have_the_gradient_of_one(tiny_folder, tmp_path, monkeypatch):
    import trl.trainer.grpo_trainer as module

    monkeypatch.setattr(module, "shuffle_sequence_dict", module.shuffle_sequence_dict)
    monkeypatch.setattr(feed, "random_order", feed.random_order)
    keep_order()
    jobs = [(loss, ga, ga, True, beta) for loss in LOSSES for beta in (0.0, 0.1) for ga in (1, 4)]
    # generations larger and smaller than a step, and TRL's own as the control
    jobs += [
        ("grpo", 4, 2, True, 0.1),
        ("bnpo", 2, 4, True, 0.1),
        ("dr_grpo", 8, 8, True, 0.0),
        ("bnpo", 4, 4, False, 0.1),
    ]
    on_ranks(2, invariance.one_of_two_ranks, tiny_folder, jobs, tmp_path)
    found = torch.load(tmp_path / "gradients.pt")
    on_one: dict[tuple, dict] = {}
    for (loss_type, ga, spg, ours, beta), gradient in zip(jobs, found, strict=True):
        numbers = invariance.first_of_two_ranks(ga, spg)
        key = (loss_type, ours, beta, tuple(numbers))
        if key not in on_one:
            on_one[key] = invariance.gradient(
                tiny_folder, loss_type, 1, 1, ours, numbers=numbers, beta=beta
            )
        difference = apart(gradient, on_one[key])
        assert difference < 1e-5 if ours else difference > 1e-3, (
            loss_type,
            ga,
            spg,
            beta,
            difference,
        )
