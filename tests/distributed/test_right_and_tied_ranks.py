"""The supervised term on right completions, groups that a tie-break decides, and groups of several
slots, on two ranks: as on one.
"""

from __future__ import annotations

import pytest
import torch

from tests.support import scripted_groups

pytestmark = pytest.mark.slow

JOBS = [
    {"positive_nll_coef": 0.5, "ga": 2},
    # 3 groups of 4 on two ranks: the second lies on both
    {"positive_nll_coef": 0.5, "group_filter": "refill", "steps": 2},
    {
        "tie_break_reward": "shaped",
        "reward_weights": [1.0, 0.0],
        "group_filter": "refill",
        "steps": 2,
    },
]


def test_two_ranks_have_the_gradient_of_one(tiny_folder, tmp_path):
    # 3 slots of a prompt and 1 of another: the first group lies on both ranks
    slots = {
        "curriculum": "adaptive",
        "max_slots_per_prompt": 3,
        "group_filter": "drop",
        "pass_rates_file": scripted_groups.write_rates(tmp_path / "rates.jsonl"),
        "pass_threshold": 2.0,
        "steps": 2,
    }
    jobs = [*JOBS, slots]
    found = scripted_groups.on_two_ranks(tiny_folder, list(map(dict, jobs)))
    for number, (job, on_ranks) in enumerate(zip(jobs, found, strict=True)):
        trainer, steps = scripted_groups.train(tiny_folder, tmp_path / str(number), **job)
        assert on_ranks["calls"] == trainer.calls
        for (gradient, _), (wanted, _) in zip(on_ranks["steps"], steps, strict=True):
            for name, exact in wanted.items():
                assert torch.allclose(gradient[name], exact, atol=3e-6, rtol=1e-4), name
        for theirs, ours in zip(on_ranks["logs"], trainer.state.log_history, strict=True):
            for name in {"positive_nll", "groups/tie_broken", "groups/reward_std"} & ours.keys():
                assert theirs[name] == pytest.approx(ours[name], rel=1e-4), name
