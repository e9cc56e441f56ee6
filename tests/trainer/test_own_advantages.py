"""An estimator of advantages of one's own is named in a recipe or in Python, and trains."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, load_recipe
from grpo_ext.objective.advantage import (
    group_advantages,
    joint_advantages,
    register_advantages,
    register_joint_advantages,
)
from grpo_ext.recipe.arguments import check_arguments
from grpo_ext.train import make_trainer
from tests.support.image_run import run
from tests.support.registry_state import registry_as_before
from tests.support.scripted_groups import FORMAT, GROUP, train
from tests.support.short_countdown import RECIPE, plugin_settings

PLUGIN = '''
from grpo_ext.objective.advantage import register_advantages
from grpo_ext.rewards import register


@register("letters_e")
def letters_e(completions):
    """Letters e among the characters."""
    return [text.count("e") / (1 + len(text)) for text in completions]


@register_advantages("rloo")
def leave_one_out(rewards, std_estimator):
    """RLOO (arXiv 2402.14740), A_i = r_i - mean of the others; (N, G)."""
    others = rewards.size(1) - 1
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / others
'''


@pytest.fixture(autouse=True)
def _own_registry():
    with registry_as_before():
        yield


def logged(folder) -> list[dict]:
    """Return the logged completions of the first step."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"] == lines[0]["step"]]


def sums(lines) -> np.ndarray:
    """Return the weighted rewards of `scripted_groups`, (groups, GROUP)."""
    rewards = [[line["rewards"]["solved"], line["rewards"]["shaped"]] for line in lines]
    return (np.array(rewards) @ [1.0, FORMAT]).reshape(-1, GROUP)


def left_out_means(scores: np.ndarray) -> np.ndarray:
    """Return the mean of the other rewards of each completion's group, by a loop."""
    return np.array([[np.delete(row, i).mean() for i in range(len(row))] for row in scores])


def test_an_estimator_of_a_plugin_file_trains_by_its_formula(tiny_folder, tmp_path):
    settings = plugin_settings(
        tiny_folder, tmp_path / "run", PLUGIN, "letters_e", scale_rewards="rloo", max_steps=1
    )
    make_trainer(load_recipe(RECIPE, settings)).train()
    lines = logged(tmp_path / "run")
    rewards = np.array([line["rewards"]["letters_e"] for line in lines]).reshape(-1, GROUP)
    assert rewards.std() > 0
    wanted = rewards - left_out_means(rewards)
    assert [line["advantage"] for line in lines] == pytest.approx(wanted.flatten().tolist())
    with pytest.raises(ValueError, match=r"scale_rewards must be one of group.*rloo.*mean 'rloo'"):
        load_recipe(RECIPE, {**settings, "scale_rewards": "rlo"})


def test_the_advantages_of_an_estimator_are_those_in_the_gradient(tiny_folder, tmp_path):
    """Twice the deviations give twice the gradient; the first step clips nothing."""
    register_advantages("doubled")(lambda rewards, _: 2 * (rewards - rewards.mean(1, keepdim=True)))
    _, [(plain, _)] = train(tiny_folder, tmp_path / "plain", scale_rewards="none")
    _, [(doubled, _)] = train(tiny_folder, tmp_path / "doubled", scale_rewards="doubled")
    scores = sums(logged(tmp_path / "doubled"))
    wanted = 2 * (scores - scores.mean(1, keepdims=True))
    advantages = [line["advantage"] for line in logged(tmp_path / "doubled")]
    assert advantages == pytest.approx(wanted.flatten().tolist())
    for name, gradient in plain.items():
        assert torch.allclose(doubled[name], 2 * gradient, atol=1e-6), name


def deviation_from_batch(rewards, std_estimator):
    """The reward minus the mean over all groups."""
    return rewards - rewards.nanmean()


@pytest.mark.parametrize("group_filter", ["off", "drop"])
def test_an_estimator_may_compare_groups(tiny_folder, tmp_path, group_filter):
    """A baseline over the batch is that of the groups that train; equal groups have advantages."""
    register_advantages("batch_mean", within_group=False, zero_if_equal=False)(deviation_from_batch)
    settings = {"scale_rewards": "batch_mean", "reward_weights": [1.0, 0.0]}
    trainer, _ = train(tiny_folder, tmp_path, group_filter=group_filter, **settings)
    lines = logged(tmp_path)
    scores = np.array([line["rewards"]["solved"] for line in lines]).reshape(-1, GROUP)
    logged_advantages = [line["advantage"] for line in lines]
    assert logged_advantages == pytest.approx((scores - scores.mean()).flatten().tolist())
    mixed = scores.std(axis=1) > 0
    assert mixed.tolist() == [True, False, False, True]
    used = scores[mixed] if group_filter == "drop" else scores
    wanted = (used - used.mean()).flatten().tolist()
    [table] = trainer.parts.feed.generation
    assert table.advantages[table.counted > 0].tolist() == pytest.approx(wanted)


def test_an_estimator_of_all_rewards_trains_by_its_formula(tiny_folder, tmp_path):
    """The smaller of two centered rewards, times the sum of the weights."""

    @register_joint_advantages("smaller")
    def smaller(rewards, weights):
        return (rewards - rewards.mean(dim=1, keepdim=True)).amin(dim=2) * weights.sum()

    train(tiny_folder, tmp_path, multi_objective_aggregation="smaller")
    lines = logged(tmp_path)
    scores = [[line["rewards"][name] for line in lines] for name in ("solved", "shaped")]
    grouped = np.array(scores).reshape(2, -1, GROUP)
    centered = grouped - grouped.mean(axis=2, keepdims=True)
    wanted = centered.min(axis=0) * (1 + FORMAT)
    assert [line["advantage"] for line in lines] == pytest.approx(wanted.flatten().tolist())


def test_an_estimator_trains_where_trl_generates(tiny_folder, tmp_path):
    """TRL itself refuses a `scale_rewards` that it does not know."""
    register_advantages("doubled")(lambda rewards, _: 2 * (rewards - rewards.mean(1, keepdim=True)))
    of_name = {}
    for name in ("none", "doubled"):
        out = tmp_path / name
        run(GRPOExtTrainer, GRPOExtConfig, tiny_folder, out, scale_rewards=name)
        of_name[name] = np.array([line["advantage"] for line in logged(out)])
    assert np.abs(of_name["none"]).max() > 0
    assert of_name["doubled"] == pytest.approx(2 * of_name["none"])


def test_what_needs_comparisons_within_groups_refuses_other_estimators():
    register_advantages("batch_mean", within_group=False)(deviation_from_batch)
    register_advantages("mean", zero_if_equal=False)(lambda rewards, _: rewards - 0.5)
    for settings, words in (
        (
            {"tie_break_reward": "shaped"},
            "but with `scale_rewards: batch_mean` they also depend on other groups",
        ),
        (
            {"environment": {"name": "guess", "credit": "turn"}},
            "own group, but with `scale_rewards: batch_mean` they also depend on other groups",
        ),
        ({"loss_normalization": "micro_batch"}, "batch_mean` needs `loss_normalization: step`."),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            check_arguments(arguments(scale_rewards="batch_mean", **settings), 1)
        if "loss_normalization" not in settings:
            check_arguments(arguments(scale_rewards="mean", **settings), 1)


def test_a_wrong_shape_and_a_taken_name_are_refused():
    register_advantages("flat")(lambda rewards, _: rewards.flatten())
    with pytest.raises(ValueError, match=r"flat returned advantages of shape .6,. for .* .2, 3."):
        group_advantages(torch.arange(6.0), 3, "flat")
    register_joint_advantages("wide")(lambda rewards, _: rewards)
    with pytest.raises(ValueError, match=r"wide returned advantages of shape .2, 3, 1."):
        joint_advantages(torch.ones(6, 1), torch.ones(1), 3, "wide")
    with pytest.raises(ValueError, match="scale_rewards 'group' is already registered"):
        register_advantages("group")
    with pytest.raises(ValueError, match="'sum_then_normalize' is already registered"):
        register_joint_advantages("sum_then_normalize")
    with pytest.raises(ValueError, match="scale_rewards: unknown estimator 'grp'"):
        group_advantages(torch.arange(6.0), 3, "grp")
    with pytest.raises(ValueError, match="aggregation: unknown estimator 'sum'"):
        joint_advantages(torch.ones(6, 1), torch.ones(1), 3, "sum")


def arguments(**settings) -> GRPOExtConfig:
    return GRPOExtConfig(
        output_dir="/nowhere", use_cpu=True, bf16=False, report_to="none", **settings
    )
