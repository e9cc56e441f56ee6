"""Notes on recipes that train nothing or cannot be continued, at both doors."""

from __future__ import annotations

import pytest

from grpo_ext import GRPOExtConfig, load_recipe
from grpo_ext.recipe.arguments import argument_notes

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
