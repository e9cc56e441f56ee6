"""The size of an evaluation batch that a recipe leaves open: whole groups, within the memory of
training.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_ext import GRPOExtConfig
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import LEAST_EVALUATED, MOST_EVALUATED, ModelSize, eval_batch_size
from grpo_ext.recipe.rules import flat_values

# SmolLM2-135M
SMALL = ModelSize(0, 0, "bfloat16", hidden_size=576, num_hidden_layers=30, kv_width=192)
# Qwen2.5-7B
LARGE = ModelSize(0, 0, "bfloat16", hidden_size=3584, num_hidden_layers=28, kv_width=512)


def chosen(values, size, processes=1):
    v = flat_values({"training": values}, {"training": GRPOExtConfig})
    return eval_batch_size(v, batch_of(v, processes), size)


@pytest.mark.parametrize(
    ("values", "size", "expected"),
    [
        ({"per_device_eval_batch_size": 24}, SMALL, 24),  # what is set is kept
        ({"per_device_train_batch_size": 32}, None, 32),  # the model is unknown
        ({"per_device_train_batch_size": 32}, SMALL, 56),  # 57 fit, in groups of 8
        ({"per_device_train_batch_size": 32, "num_generations_eval": 1}, SMALL, 57),
        (
            {"per_device_train_batch_size": 32, "gradient_checkpointing": False},
            SMALL,
            MOST_EVALUATED,
        ),
        ({"per_device_train_batch_size": 8, "use_vllm": True}, LARGE, 8),  # 14 fit
        ({"per_device_train_batch_size": 256}, SMALL, 256),
        ({"per_device_train_batch_size": 10, "num_generations_eval": 4}, None, 12),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}, None, 8),
    ],
)
def test_sizes(values, size, expected):
    assert chosen({"num_generations": 8, **values}, size) == expected


@settings(max_examples=200, deadline=None)
@given(
    micro_batch=st.integers(1, 64),
    group=st.integers(2, 16),
    eval_group=st.none() | st.integers(1, 16),
    processes=st.integers(1, 8),
    checkpointing=st.booleans(),
    use_vllm=st.booleans(),
    size=st.sampled_from([None, SMALL, LARGE]),
)
def test_whole_groups_that_need_no_more_memory_than_training(
    micro_batch, group, eval_group, processes, checkpointing, use_vllm, size
):
    assume(micro_batch * processes % group == 0)
    values = {
        "per_device_train_batch_size": micro_batch,
        "num_generations": group,
        "num_generations_eval": eval_group,
        "gradient_checkpointing": checkpointing,
        "use_vllm": use_vllm,
    }
    batch = chosen(values, size, processes)
    of_a_group = eval_group or group
    assert batch * processes % of_a_group == 0
    smallest = max(micro_batch, LEAST_EVALUATED)
    assert batch >= smallest
    if batch - smallest < math.lcm(processes, of_a_group) // processes:
        return
    assert batch <= MOST_EVALUATED
    # bytes for a token of each sequence
    cache = 4 * size.num_hidden_layers * size.kv_width
    layer = 34 * size.hidden_size
    layers = layer * size.num_hidden_layers
    if checkpointing:
        layers = layer + 2 * size.hidden_size * size.num_hidden_layers
    training = micro_batch * (layers + (0 if use_vllm else cache))
    assert batch * (layer + cache) <= training


@pytest.mark.parametrize("group", [2, 3, 7])
def test_arguments_leave_it_to_the_trainer(tmp_path, group):
    args = GRPOExtConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        eval_strategy="steps",
        num_generations_eval=group,
    )
    assert args.per_device_eval_batch_size is None


def test_the_preset_trl_keeps_trls():
    recipe = load_recipe(None, {"preset": "trl", "model_name_or_path": "a/model"})
    assert recipe.flat.per_device_eval_batch_size == 8
