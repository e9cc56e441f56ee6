"""Notes on recipes that train nothing or cannot be continued, at both doors."""

from __future__ import annotations

import pytest
import torch

from grpo_ext import GRPOExtConfig, load_recipe
from grpo_ext.recipe.arguments import argument_notes
from grpo_ext.recipe.notes import LOST_RATES

NOTED = {
    "learning_rate": ({"learning_rate": 0.0}, "`learning_rate: 0` leaves all weights unchanged"),
    "beta": ({"beta": 100.0}, "keeps the policy close to the reference"),
    "max_grad_norm": ({"max_grad_norm": 1e-12}, "less than the epsilon of Adam"),
    "save_only_model": ({"save_only_model": True}, "the run cannot be resumed from"),
}


@pytest.mark.parametrize("key", NOTED)
def test_a_note_says_so(key):
    values, words = NOTED[key]
    recipe = load_recipe(None, {"model_name_or_path": "m", **values})
    assert [words in note.message for note in recipe.notes if note.key == key] == [True]
    args = GRPOExtConfig("out", use_cpu=True, bf16=False, **values)
    assert [words in note.message for note in argument_notes(args, 1) if note.key == key] == [True]


def test_other_values_get_none():
    values = {"learning_rate": 1e-6, "save_only_model": True, "save_strategy": "no"}
    recipe = load_recipe(None, {"model_name_or_path": "m", **values})
    assert not {"learning_rate", "save_only_model"} & {note.key for note in recipe.notes}


ROUNDED = {"model_name_or_path": "m", "dtype": "bfloat16", "learning_rate": 1e-6}


@pytest.mark.parametrize(
    "values, noted",
    [
        ({}, True),
        ({"dtype": "float16", "learning_rate": 2e-6}, True),
        ({"accelerate_config": "single_gpu"}, True),
        ({"learning_rate": 1e-4}, False),
        ({"learning_rate": 0.0}, False),
        ({"dtype": "float32"}, False),
        ({"use_peft": True}, False),
        ({"accelerate_config": "zero2"}, False),  # DeepSpeed steps a float32 copy
        ({"accelerate_config": "fsdp2"}, False),  # accelerate loads the weights in float32
        ({"optim": "adamw_anyprecision"}, False),  # it keeps what is rounded away
    ],
    ids=str,
)
def test_steps_that_are_rounded_away_are_noted(values, noted):
    recipe = load_recipe(None, {**ROUNDED, **values})
    assert ["rounded away" in str(n) for n in recipe.notes if n.key == "dtype"] == [True] * noted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_most_steps_of_a_noted_rate_are_lost_in_weights_of_a_usual_size(dtype):
    torch.manual_seed(0)
    weights = (0.02 * torch.randn(100_000)).to(dtype)
    stepped = weights - LOST_RATES[str(dtype).removeprefix("torch.")]
    assert (stepped == weights).double().mean() > 0.5
