"""The fuzzer of the trainer sees what it is for: right gradients pass, wrong ones do not."""

from __future__ import annotations

import pytest

from tests.hunt.hunt_trainer import compare, record_of
from tests.support.trainer_oracle import check_order

CUT = {"ranks": 1, "per_device_train_batch_size": 4, "num_generations": 4, "seed": 1}
SETTINGS = {
    "several updates": {"num_iterations": 2, "loss_type": "sapo", "rewards": "two"},
    "carried groups": {"group_filter": "refill", "max_staleness": 3, "rewards": "one"},
    "kept sets": {"top_k": 5, "beta": 0.1, "steps_per_generation": 2, "rewards": "missing"},
    "episodes": {
        "environment": {"name": "tests.support.scripted_run:Letters", "credit": "turn"},
        "importance_sampling_level": "sequence",
        "rewards": "two",
    },
    "turns of a weighted reward": {
        "environment": {"name": "tests.support.scripted_run:Letters", "credit": "turn"},
        "reward_weights": (0.25, 1.0),
        "rewards": "one",
    },
    "another engine": {
        "sampler": "process",
        "overlap": "one_step",
        "partial_rollouts": 2,
        "beta": 0.1,
        "rewards": "tenths",
    },
    "ties of right completions": {
        "tie_break_reward": "shaped",
        "reward_weights": (1.0, 0.0),
        "pass_threshold": 0.5,
        "group_filter": "refill",
        "rewards": "constant beside",
    },
    "ties beside other groups": {
        "tie_break_reward": "shaped",
        "tie_break_coef": 1.0,
        "reward_weights": (1.0, 0.0),
        "num_generations": 2,
        "scale_rewards": "none",
        "group_filter": "drop",
        "rewards": "two",
        "seed": 3,
    },
    "groups of several slots": {
        "max_slots_per_prompt": 4,
        "curriculum": "adaptive",
        "per_device_train_batch_size": 16,
        "num_generations": 2,
        "group_filter": "drop",
        "scale_rewards": "batch",
        "rewards": "missing",
    },
    "right completions as supervised text": {
        "positive_nll_coef": 0.5,
        "group_filter": "refill",
        "max_staleness": 3,
        "mask_truncated_completions": True,
        "top_k": 5,
        "rewards": "two",
    },
    "right completions of equal groups": {
        "positive_nll_coef": 0.5,
        "pass_threshold": 0.5,
        "steps_per_generation": 2,
        "sampler": "process",
        "rewards": "constant beside",
    },
    "easy to hard": {
        "curriculum": "easy_to_hard",
        "difficulty_column": "hardness",
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 2,
        "rewards": "two",
    },
    "large rewards that cancel": {
        "multi_objective_aggregation": "normalize_then_sum",
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
        "rewards": "tenths",
        "seed": 2,
    },
    "several tasks": {"group_filter": "drop", "scale_rewards": "batch", "rewards": "tasks"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_the_formulas(name):
    assert compare(record_of({**CUT, **SETTINGS[name]})) == 3


def other_reward(completion):
    completion["rewards"][0] += 1


def other_ending(completion):
    completion["truncated"] = not completion["truncated"]


def other_token(completion):
    completion["ids"][0] = 3 + completion["ids"][0] % 7


@pytest.mark.parametrize("wrong", [other_reward, other_ending, other_token])
def test_a_gradient_of_something_else_is_seen(wrong):
    record = record_of({**CUT, "rewards": "two", "mask_truncated_completions": True})
    assert compare(record) == 3
    [call] = record["generations"][1]["calls"]
    wrong(next(completion for completion in call if completion["ids"]))
    with pytest.raises(AssertionError, match="step 1"):
        compare(record)


@pytest.mark.parametrize("column", ["hardness", "number"])
def test_another_order_of_prompts_is_seen(column):
    curriculum = {"curriculum": "easy_to_hard", "difficulty_column": column}
    record = record_of({**CUT, **curriculum, "rewards": "two"})
    check_order(record)
    first, second, third = record["generations"]
    for wrong in ([second, first, third], [first, second], [second, third]):
        with pytest.raises(AssertionError, match="generation"):
            check_order({**record, "generations": wrong})
    first["calls"][0][0]["number"] = 16  # of middling difficulty
    with pytest.raises(AssertionError, match="generation 0"):
        check_order(record)
