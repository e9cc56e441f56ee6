"""A tie-break reward decides groups whose completions are all right and earn the same, and no
others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.step.groups import GroupRule
from grpo_ext.step.judge import AdvantageRule, TieBreak
from tests.support.logs import json_rows
from tests.support.scripted_groups import (
    DEAD,
    GROUP,
    fixed_completion,
    prompt_of,
    shaped,
    solved,
    train,
)

TIES = {"tie_break_reward": "shaped", "reward_weights": [1.0, 0.0]}
RIGHT = [number for number, score in DEAD.items() if score == 1.0]  # prompts 3 and 14


def normalized(scores):
    scores = np.array(scores)
    return (scores - scores.mean()) / (scores.std(ddof=1) + 1e-4)


def group_of(trainer, number):
    """Return the scripted completions of a prompt, as tokens."""
    words = trainer.processing_class
    prompt = words(prompt_of(number))["input_ids"]
    return [fixed_completion(prompt, n, len(words), words.eos_token_id) for n in range(GROUP)]


def lines_of(folder):
    """Return the logged completions of prompts 1 to 4, which are groups 0 to 3."""
    lines = json_rows(folder / "samples.jsonl")
    return {number: [x for x in lines if x["group"] == number - 1] for number in range(1, 5)}


def test_a_tie_of_right_completions_gets_the_advantages_of_the_other_reward(tiny_folder, tmp_path):
    """Of prompts 1 to 4, number 2 is all wrong and number 3 all right."""
    trainer, _ = train(tiny_folder, tmp_path, **TIES)
    of_prompt = lines_of(tmp_path)
    group = group_of(trainer, 3)
    wanted = 0.1 * normalized(shaped(group, group))
    assert [line["advantage"] for line in of_prompt[3]] == pytest.approx(wanted.tolist())
    assert all(line["tie_break"] is True and line["reward"] == 1.0 for line in of_prompt[3])
    assert [line["advantage"] for line in of_prompt[2]] == [0.0] * GROUP
    group = group_of(trainer, 1)
    wanted = normalized(solved(group, group, [1] * GROUP))
    assert [line["advantage"] for line in of_prompt[1]] == pytest.approx(wanted.tolist())
    assert not any("tie_break" in line for line in [*of_prompt[1], *of_prompt[2]])
    [logs, _] = trainer.state.log_history
    assert logs["groups/tie_broken"] == 1 / 4
    assert (logs["groups/all_right"], logs["groups/mixed"]) == (1 / 4, 2 / 4)
    assert logs["groups/kept"] == 3
    assert logs["frac_reward_zero_std"] == 1 / 4
    # prompt 3 is odd, prompt 2 even
    assert logs["tasks/odd/groups/tie_broken"] == 1 / 2
    assert logs["tasks/even/groups/tie_broken"] == 0


def test_a_refill_keeps_groups_that_the_tie_break_decides(tiny_folder, tmp_path):
    """3 and 14 have signal now, so one prompt less is drawn in the first step."""
    trainer, _ = train(tiny_folder, tmp_path, group_filter="refill", **TIES)
    assert trainer.calls == [[1, 2, 3, 4], [13, 14]]
    [logs, _] = trainer.state.log_history
    assert (logs["groups/kept"], logs["groups/carried"], logs["groups/missing"]) == (5, 1, 0)


def test_the_gradient_of_a_step_of_ties_is_that_of_the_other_reward_alone(tiny_folder, tmp_path):
    """A batch of prompts that are all right, with the coefficient 1, against a run that trains on
    the other reward.
    """
    same = {"numbers": RIGHT * 2}
    _, tied = train(tiny_folder, tmp_path / "a", tie_break_coef=1.0, **TIES, **same)
    _, alone = train(tiny_folder, tmp_path / "b", reward_weights=[0.0, 1.0], **same)
    [(gradient, _)], [(wanted, _)] = tied, alone
    assert gradient.keys() == wanted.keys()
    for name, exact in wanted.items():
        assert torch.allclose(gradient[name], exact, atol=1e-7), name
    _, half = train(tiny_folder, tmp_path / "c", tie_break_coef=0.5, **TIES, **same)
    for name, exact in wanted.items():
        assert torch.allclose(half[0][0][name], 0.5 * exact, atol=1e-7), name


def partly(completions, completion_ids, **kwargs):
    """Scores two of the four completions of each group."""
    scores = shaped(completions, completion_ids)
    return [score if n % GROUP < 2 else None for n, score in enumerate(scores)]


def test_a_completion_without_a_score_of_the_tie_break_has_no_advantage(tiny_folder, tmp_path):
    ties = {**TIES, "tie_break_reward": "partly"}
    trainer, _ = train(tiny_folder, tmp_path, rewards=(solved, partly), **ties)
    advantages = [line["advantage"] for line in lines_of(tmp_path)[3]]
    scores = shaped(*2 * [group_of(trainer, 3)])[:2]
    wanted = 0.1 * normalized([*scores, np.mean(scores), np.mean(scores)])
    assert advantages == pytest.approx(wanted.tolist())
    assert advantages[2:] == [0.0, 0.0]


SCORES = st.sampled_from([0.0, 0.5, 1.0, float("nan")])


@given(
    st.lists(st.tuples(SCORES, SCORES, SCORES), min_size=3, max_size=12),
    st.sampled_from(["group", "none"]),
)
def test_ties_are_groups_of_right_completions_with_equal_sums(rows, scale):
    """By loops over groups of three; the outcome is the first reward, the last breaks ties."""
    rewards = torch.tensor(rows[: len(rows) // 3 * 3], dtype=torch.float64).nan_to_num(nan=-1.0)
    outcomes = torch.tensor(rows[: len(rewards)], dtype=torch.float64)[:, 0]
    weights = torch.tensor([1.0, 2.0, 0.0])
    rule = AdvantageRule(3, weights, scale, tie_break=TieBreak(2, 0.25, 1.0))
    ties = rule.ties(rewards, outcomes)
    advantages = rule.advantages(rewards, ties)
    stats = GroupRule(3).judge(outcomes, ties)
    for number in range(len(rewards) // 3):
        group = slice(3 * number, 3 * number + 3)
        sums = [a + 2 * b for a, b, _ in rewards[group].tolist()]
        tie_scores = rewards[group, 2].tolist()
        right = all(outcome >= 1 for outcome in outcomes[group].tolist())
        decided = right and len(set(sums)) == 1 and len(set(tie_scores)) > 1
        assert ties[group].tolist() == [decided] * 3
        scores = np.array(tie_scores if decided else sums)
        wanted = scores - scores.mean()
        if scale == "group":
            wanted = wanted / (scores.std(ddof=1) + 1e-4)
        if decided:
            wanted = 0.25 * wanted
        assert advantages[group].tolist() == pytest.approx(wanted.tolist(), abs=1e-9)
        assert bool(stats.kept[number]) == (decided or bool(stats.mixed[number]))


FUNCS = ["countdown", {"name": "length", "target": 1, "weight": 0}]
RECIPE = {"model_name_or_path": "m", "reward_funcs": FUNCS, "tie_break_reward": "length"}


def messages(**more):
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, {**RECIPE, **more})
    return [problem.message for problem in caught.value.problems]


def test_a_recipe_names_a_reward_of_weight_0():
    assert load_recipe(None, RECIPE).training.tie_break_coef == 0.1
    weights = {"reward_funcs": ["countdown", "format"], "tie_break_reward": "format"}
    assert load_recipe(None, {**RECIPE, **weights, "reward_weights": [1.0, 0.0]})
    [message] = messages(**weights, reward_weights=[1.0, 0.5])
    assert "format` has weight 0.5" in message and "the weight 0 in reward_weights" in message
    [message] = messages(tie_break_reward="lenght")
    assert (
        "no reward 'lenght'. The rewards are countdown, length. Did you mean 'length'?" in message
    )
    [message] = messages(group_filter_metric="length")
    assert "length` also decides which completions are correct" in message
    [message] = messages(reward_funcs=None, tie_break_reward="countdown")
    assert "countdown` has weight 1" in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale_rewards": "batch"}, "`scale_rewards: batch` they also depend on other groups"),
        (
            {"multi_objective_aggregation": "normalize_then_sum"},
            "needs `multi_objective_aggregation: sum_then_normalize`.",
        ),
        (
            {"loss_normalization": "micro_batch"},
            "`tie_break_reward: length` needs `loss_normalization: step`.",
        ),
        ({"tie_break_coef": 0}, "tie_break_coef"),
        ({"environment": {"name": "guess", "credit": "turn"}}, "Remove tie_break_reward."),
    ],
)
def test_what_does_not_go_with_ties_is_refused_by_name(options, said):
    assert any(said in message for message in messages(**options))


def test_a_coefficient_without_the_reward_is_noted():
    notes = load_recipe(None, {"model_name_or_path": "m", "tie_break_coef": 0.5}).notes
    assert any(
        "tie_break_coef does nothing without tie_break_reward" in str(note) for note in notes
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tie_break_reward": "shapely"}, "no reward 'shapely'. The rewards are solved, shaped."),
        ({"tie_break_reward": "shaped"}, "shaped` has weight 0.25"),
        (
            {"tie_break_reward": "solved", "reward_weights": [0.0, -1.0]},
            "solved` also decides which completions are correct",
        ),
    ],
)
def test_a_trainer_from_python_refuses_the_same(tiny_folder, tmp_path, settings, said):
    with pytest.raises(ValueError, match=said):
        train(tiny_folder, tmp_path, **settings)
