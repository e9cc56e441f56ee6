"""Filtering and refilling on two ranks: the groups of one, also where a group lies on both."""

from __future__ import annotations

import pytest

from tests.support import scripted_groups
from tests.support.refilled_groups import CALLS, PLAN, check_steps

pytestmark = pytest.mark.slow


def test_two_ranks_have_the_gradients_of_the_live_groups(tiny_folder, tmp_path):
    jobs = [
        {"group_filter": "refill", "steps": 3},
        {"group_filter": "refill", "steps": 3, "ga": 2, "loss_type": "dapo"},
        {"group_filter": "drop", "scale_rewards": "batch"},
    ]
    refilled, cut, dropped = scripted_groups.on_two_ranks(tiny_folder, jobs)
    for found, loss_type in ((refilled, "grpo"), (cut, "dapo")):
        # 3 groups of 4 on two ranks: the second lies on both
        assert found["calls"] == CALLS
        check_steps(tiny_folder, found["steps"], PLAN, loss_type=loss_type)
    check_steps(tiny_folder, dropped["steps"], [[(1, 0), (4, 0)]], scale="batch")
    assert refilled["logs"][0]["groups/carried"] == 1
    alone = scripted_groups.train(tiny_folder, tmp_path, **jobs[0])[0].state.log_history
    for ours, own in zip(refilled["logs"][:3], alone[:3], strict=True):
        by_task = {name for name in own if name.startswith("tasks/")}
        assert {"tasks/odd/reward", "tasks/even/groups/kept"} <= by_task
        for name in by_task:
            assert ours[name] == pytest.approx(own[name], abs=1e-6), name
        assert own["groups/reward_std"] > 0
        assert ours["groups/reward_std"] == pytest.approx(own["groups/reward_std"], rel=1e-6)
        assert own["reward_se"] > 0
        for name in ("reward_se", "rewards/solved/mean_se"):
            assert ours[name] == pytest.approx(own[name], rel=1e-6)
