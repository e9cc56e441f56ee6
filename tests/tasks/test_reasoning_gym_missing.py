"""What the task `reasoning_gym` says without its package or with another version."""

from __future__ import annotations

import sys

import pytest

from grpo_ext import RecipeError, load_recipe
from grpo_ext.common import gym_package

GIVEN = {"model_name_or_path": "m", "task": "reasoning_gym", "generators": ["gcd"]}


def test_a_package_that_cannot_be_imported_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(RecipeError, match=r"Run `pip install reasoning-gym==0\.1\.25`"):
        load_recipe(None, GIVEN)


def test_another_version_is_refused(monkeypatch):
    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr(gym_package, "version", lambda name: "0.1.26")
    with pytest.raises(RecipeError, match=r"0\.1\.26.*Run `pip install reasoning-gym==0\.1\.25`"):
        load_recipe(None, GIVEN)
