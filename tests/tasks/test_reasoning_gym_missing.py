"""What the task reasoning_gym does without its package, and how difficult its problems are."""

from __future__ import annotations

import sys

import pytest

from grpo_ext import RecipeError, load_recipe
from grpo_ext.tasks.reasoning_gym import difficulty


def test_a_package_that_cannot_be_imported_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(RecipeError, match=r"needs `pip install 'grpo_ext\[reasoning-gym\]'`"):
        load_recipe(None, {"model_name_or_path": "m", "task": "reasoning_gym"})


def test_difficulty_is_the_place_in_the_ranges():
    ranges = {"terms": (2, 6), "digits": [1, 3], "fixed": (4, 4), "share": 0.5, "untold": (0, 1), "names": ("a", "b")}
    assert difficulty({"terms": 3, "digits": 3, "fixed": 4, "share": 0.5, "names": "a", "difficulty": ranges}) == 0.625
    assert difficulty({"terms": 3}) == difficulty({"difficulty": {"terms": 3}, "terms": 3}) == 0.5
