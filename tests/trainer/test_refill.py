"""What groups without signal leave in a step: nothing.

Gradients against an oracle that saw only the groups with signal.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo_ext.objective.advantage import group_stds
from grpo_ext.step.judge import outcome_index
from grpo_ext.step.refill import not_too_old
from tests.support.fixed_completions import apart
from tests.support.refilled_groups import CALLS, PLAN, check_steps
from tests.support.scripted_groups import (
    DEAD,
    FORMAT,
    GROUP,
    GROUPS,
    fixed_completion,
    prompt_of,
    shaped,
    solved,
    train,
)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
@pytest.mark.parametrize("ga", [1, 4])
def test_refill_has_the_gradients_of_the_live_groups(tiny_folder, tmp_path, loss_type, ga):
    settings = {"loss_type": loss_type, "group_filter": "refill"}
    trainer, steps = train(tiny_folder, tmp_path, ga=ga, steps=3, **settings)
    assert trainer.calls == CALLS
    check_steps(tiny_folder, steps, PLAN, loss_type=loss_type)
    first, second, third, _ = trainer.state.log_history
    assert (first["groups/generated"], first["groups/kept"]) == (8, 5)
    assert (first["groups/all_wrong"], first["groups/all_right"], first["groups/mixed"]) == (
        1 / 8,
        2 / 8,
        5 / 8,
    )
    assert (first["groups/refilled"], first["groups/carried"], first["groups/missing"]) == (4, 1, 0)
    assert (second["groups/reused"], third["groups/reused"], third["groups/carried"]) == (1, 1, 0)


def completions_of(trainer, number):
    """Return the scripted completions of a prompt, as tokens."""
    words = trainer.processing_class
    prompt = words(prompt_of(number))["input_ids"]
    return [fixed_completion(prompt, n, len(words), words.eos_token_id) for n in range(GROUP)]


def weighted_rewards(trainer, numbers):
    """Return the weighted rewards of each prompt's group, (N, G), by numpy."""
    groups = []
    for number in numbers:
        group = completions_of(trainer, number)
        outcomes = np.array(solved(group, group, [number] * GROUP))
        groups.append(outcomes + FORMAT * np.array(shaped(group, group)))
    return np.array(groups)


def stds_of(trainer, numbers, ddof):
    """Return the std of the weighted rewards of each prompt's group, by numpy."""
    return weighted_rewards(trainer, numbers).std(axis=1, ddof=ddof)


def test_the_error_in_a_log_is_that_of_the_mean_over_its_steps(tiny_folder, tmp_path):
    trainer, _ = train(tiny_folder, tmp_path, steps=2, logging_steps=2)
    [first, *_] = trainer.state.log_history
    by_step = weighted_rewards(trainer, range(1, 2 * GROUPS + 1)).mean(axis=1).reshape(2, GROUPS)
    errors = by_step.std(axis=1, ddof=1) / np.sqrt(GROUPS)
    assert first["reward"] == pytest.approx(by_step.mean(), rel=1e-5)
    assert first["reward_se"] == pytest.approx(np.hypot(*errors) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "numbers", "ddof"),
    [
        ({"group_filter": "refill"}, [*CALLS[0], *CALLS[1]], 1),
        ({"group_filter": "drop", "std_estimator": "population"}, CALLS[0], 0),
        ({"ga": 2}, CALLS[0], 1),
    ],
)
def test_the_std_within_groups_is_the_mean_of_the_groups_own(
    tiny_folder, tmp_path, settings, numbers, ddof
):
    """Over all groups that were generated for a step, and of each task alone."""
    trainer, _ = train(tiny_folder, tmp_path, **settings)
    [first, *_] = trainer.state.log_history
    wanted = np.mean(stds_of(trainer, numbers, ddof))
    assert first["groups/reward_std"] == pytest.approx(wanted, rel=1e-5)
    assert first["reward_std"] != pytest.approx(wanted, rel=0.01)
    odd = stds_of(trainer, [number for number in numbers if number % 2], ddof)
    assert first["tasks/odd/groups/reward_std"] == pytest.approx(np.mean(odd), rel=1e-5)


def test_a_group_with_one_scored_completion_has_no_std():
    nan = float("nan")
    rewards = torch.tensor([1.0, nan, nan, 0.0, 4.0, nan, 2.0, 2.0, 2.0])
    for estimator, ddof in (("sample", 1), ("population", 0)):
        stds = group_stds(rewards, 3, estimator)
        assert stds[0].isnan()
        assert stds[1:].tolist() == pytest.approx([np.std([0.0, 4.0], ddof=ddof), 0.0])


def test_figures_of_a_step_are_of_all_that_was_generated_for_it(tiny_folder, tmp_path):
    """Of both rounds together, those whose groups were not used, too."""
    trainer, _ = train(tiny_folder, tmp_path, group_filter="refill")
    words = trainer.processing_class
    lengths = [
        len(
            fixed_completion(
                words(prompt_of(number))["input_ids"], nth, len(words), words.eos_token_id
            )
        )
        for number in (*CALLS[0], *CALLS[1])
        for nth in range(GROUP)
    ]
    first = trainer.state.log_history[0]
    assert first["completions/mean_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert (first["completions/min_length"], first["completions/max_length"]) == (
        min(lengths),
        max(lengths),
    )


def test_without_staleness_nothing_is_generated_in_excess(tiny_folder, tmp_path):
    trainer, steps = train(tiny_folder, tmp_path, steps=2, group_filter="refill", max_staleness=0)
    assert trainer.calls == [[1, 2, 3, 4], [13, 14], [15], [5, 6, 7, 8], [16]]
    plan = [[(1, 0), (4, 0), (13, 0), (15, 0)], [(5, 1), (6, 1), (8, 1), (16, 1)]]
    check_steps(tiny_folder, steps, plan)
    assert trainer.parts.feed.generation[0].old_per_token_logps is None


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_when_the_rounds_run_out_the_step_is_that_of_what_there_is(
    tiny_folder, tmp_path, scale, caplog
):
    settings = {"group_filter": "refill", "group_filter_max_rounds": 1, "scale_rewards": scale}
    trainer, steps = train(
        tiny_folder, tmp_path, numbers=[1, 2, 3, 4, 14, 7, 2, 3, 16], further=4, **settings
    )
    assert trainer.calls == [[1, 2, 3, 4], [14, 7, 2, 3]]
    check_steps(tiny_folder, steps, [[(1, 0), (4, 0)]], scale=scale)
    assert trainer.state.log_history[0]["groups/missing"] == 2
    assert "only 2 of 4 groups have signal, even after the further rounds" in caplog.text


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_drop_has_the_gradient_of_the_live_groups(tiny_folder, tmp_path, scale):
    _, steps = train(tiny_folder, tmp_path, ga=2, group_filter="drop", scale_rewards=scale)
    check_steps(tiny_folder, steps, [[(1, 0), (4, 0)]], scale=scale)
    _, kept = train(tiny_folder, tmp_path, ga=2, scale_rewards=scale)
    assert (
        apart(kept[0][0], steps[0][0]) > 0.05
    )  # the control: `off` trains on groups whose format varies


def test_a_step_without_any_signal_changes_nothing(tiny_folder, tmp_path):
    settings = {"group_filter": "refill", "group_filter_max_rounds": 1}
    trainer, [(grads, _)] = train(
        tiny_folder, tmp_path, numbers=[2, 3, 7, 14], further=0, **settings
    )
    assert all(not g.any() for g in grads.values())
    assert trainer.state.log_history[0]["groups/missing"] == GROUPS


def test_several_iterations_and_generations_that_span_steps(tiny_folder, tmp_path):
    """A generation of two optimizer steps, trained on twice.

    Whatever order, only live groups count.
    """
    settings = {
        "group_filter": "refill",
        "num_iterations": 2,
        "max_staleness": 4,
        "steps_per_generation": 2,
    }
    trainer, steps = train(tiny_folder, tmp_path, steps=5, **settings)
    assert trainer.calls[:2] == [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [13, 14, 15, 16, 17],
    ]  # 5 of 8 were kept, 3 missing
    assert all(g.isfinite().all() for grads, _ in steps for g in grads.values())
    assert all(any(g.any() for g in grads.values()) for grads, _ in steps)
    ages = [
        (row["groups/reused"], row["groups/expired"])
        for row in trainer.state.log_history
        if "groups/reused" in row
    ]
    assert ages == [(0, 0), (1, 0)]  # generated at step 0, used from step 4 on
    used = trainer.parts.feed.generation[0]
    assert used.old_per_token_logps.shape == used.completion_ids.shape


def test_groups_that_are_too_old_are_not_used(tiny_folder, tmp_path):
    settings = {"group_filter": "refill", "num_iterations": 2, "max_staleness": 2}
    trainer, _ = train(tiny_folder, tmp_path, steps=3, **settings)
    carried = trainer.parts.rollout.carried
    assert carried is not None and set(carried.steps) == {trainer.state.global_step - 1}
    assert not_too_old(carried, trainer.state.global_step + 1, trainer.args.max_staleness)[1] == 0
    assert not_too_old(carried, trainer.state.global_step + 3, trainer.args.max_staleness) == (
        None,
        len(carried),
    )


def test_streams(tiny_folder, tmp_path):
    trainer, steps = train(
        tiny_folder,
        tmp_path,
        steps=3,
        make=lambda rows: rows.to_iterable_dataset(),
        group_filter="refill",
    )
    assert trainer.calls == CALLS
    check_steps(tiny_folder, steps, PLAN)


def test_state_goes_on_where_it_was(tiny_folder, tmp_path):
    trainer, _ = train(tiny_folder, tmp_path, steps=2, group_filter="refill")
    state = trainer.parts.rollout.state_dict()
    other, _ = train(tiny_folder, tmp_path, steps=1, group_filter="refill")
    other.parts.rollout.load_state_dict(state)
    assert other.parts.rollout.carried.steps == (1,)
    assert [row["number"] for row in other.parts.order.further.take(2)] == [18, 19]


def test_the_shaped_reward_is_not_asked(tiny_folder, tmp_path):
    """Format varies in every group, the outcome does not in `DEAD`.

    Judged by the sum no group would be filtered.
    """
    trainer, _ = train(tiny_folder, tmp_path, group_filter="drop")
    assert trainer.reward_func_names[trainer.parts.generations.outcome_order[0]] == "solved"
    rewards = torch.stack(
        [torch.tensor(list(trainer._logs["rewards"][n])) for n in ("solved", "shaped")], dim=1
    )
    rewards = rewards.view(GROUPS, -1, 2)
    assert (rewards[:, :, 1].std(1) > 0).all()
    assert list(map(bool, rewards[:, :, 0].std(1) == 0)) == [n in DEAD for n in (1, 2, 3, 4)]
    assert trainer.state.log_history[0]["groups/kept"] == 2
    by_format, _ = train(tiny_folder, tmp_path, group_filter="drop", group_filter_metric="shaped")
    assert by_format.state.log_history[0]["groups/kept"] == 4


def test_refusals(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="needs `loss_normalization: step`"):
        train(tiny_folder, tmp_path, group_filter="drop", loss_normalization="micro_batch")
    with pytest.raises(
        ValueError, match=r"one of off, drop, refill; got 'fill'\. Did you mean 'refill'\?"
    ):
        train(tiny_folder, tmp_path, group_filter="fill")
    with pytest.raises(ValueError, match=r"no reward 'accuracy'\. The rewards are a, b"):
        outcome_index(["a", "b"], [1.0, 2.0], "accuracy")
