"""What the example of Reasoning Gym does without its package or with another version, and how
difficult its problems are.
"""

from __future__ import annotations

import sys

import pytest

from grpo_ext import RecipeError, load_recipe
from grpo_ext.common.modules import load_file
from tests.support.places import REPO

FILE = REPO / "examples" / "reasoning_gym" / "problems.py"
GIVEN = {"model_name_or_path": "m", "task": f"{FILE}:ReasoningGym"}


def test_a_package_that_cannot_be_imported_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(RecipeError, match=r"needs `pip install reasoning-gym==0\.1\.25`"):
        load_recipe(None, GIVEN)


def test_another_version_is_refused_by_task_and_reward(monkeypatch):
    problems = load_file(FILE)
    monkeypatch.setattr(problems, "version", lambda name: "0.1.26")
    with pytest.raises(
        RecipeError, match=r"needs `pip install reasoning-gym==0\.1\.25` .version 0\.1\.26 is there"
    ):
        load_recipe(None, GIVEN)
    with pytest.raises(ImportError, match=r"version 0\.1\.26 is there"):
        problems.score("<answer>7</answer>", {"generator": "chain_sum", "options": {}})
