"""A row that some rewards did not score is judged on those that did."""

from __future__ import annotations

import torch

from grpo_ext.step.judge import fill_unscored

NAN = float("nan")


def test_nothing_missing_is_the_same_tensor():
    rewards = torch.rand(8, 2)
    assert fill_unscored(rewards, 4) is rewards


def test_a_missing_score_takes_its_groups_mean():
    rewards = torch.tensor(
        [
            [1.0, 1.0],
            [0.0, NAN],
            [1.0, 0.0],
            [0.0, 0.5],
            [1.0, 9.0],
            [1.0, 9.0],
            [0.0, 9.0],
            [0.0, 9.0],
        ]
    )
    filled = fill_unscored(rewards, 4)
    assert filled[1].tolist() == [0.0, 0.5]  # mean of 1, 0, 0.5; the other group does not count
    assert torch.equal(filled[[0, 2, 3, 4, 5, 6, 7]], rewards[[0, 2, 3, 4, 5, 6, 7]])


def test_with_the_fill_a_missing_score_moves_no_advantage():
    # rewards 1+1, 1+None, 1+1, 1+1: counted as 0 the second would be punished; nothing sets it
    # apart
    rewards = torch.tensor([[1.0, 1.0], [1.0, NAN], [1.0, 1.0], [1.0, 1.0]])
    total = fill_unscored(rewards, 4).sum(dim=1)
    assert torch.equal(total - total.mean(), torch.zeros(4))


def test_a_reward_that_scored_nobody_in_a_group_says_nothing():
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN]])
    assert fill_unscored(rewards, 2).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_row_that_nobody_scored_stays_unscored():
    rewards = torch.tensor([[NAN, NAN], [0.0, 2.0]])
    filled = fill_unscored(rewards, 2)
    assert filled[0].isnan().all()
    assert filled[1].tolist() == [0.0, 2.0]
