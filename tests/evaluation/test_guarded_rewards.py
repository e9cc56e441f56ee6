"""Rewards of an evaluation run as those of a training.

Behind guards, and what needs the engine in worker processes.
"""

from __future__ import annotations

import json

import pytest

from grpo_ext.evaluation.evaluate_recipe import rows_and_rewards
from grpo_ext.recipe.load import load_recipe
from grpo_ext.run.from_recipe import guarded_rewards

FORMULA = {"completions": [r"<answer>\sqrt{8}</answer>"], "solution": [r"2\sqrt{2}"]}
RECIPE = {
    "use_cpu": True,
    "bf16": False,
    "output_dir": "unused",
    "task": "prompts",
    "model_name_or_path": "none",
    "reward_funcs": ["accuracy"],
}


@pytest.fixture
def recipe(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"prompt": [{"role": "user", "content": "?"}], "solution": "1"}) + "\n"
    )
    return lambda **more: load_recipe(
        None, RECIPE | {"dataset_name": str(rows), "eval_dataset_name": str(rows)} | more
    )


@pytest.fixture(autouse=True)
def no_engine_here(monkeypatch):
    def must_not_run(formula):
        raise RuntimeError("a formula was judged in the evaluating process")

    monkeypatch.setattr("grpo_ext.rewards.engine.parse", must_not_run)


def test_formulas_of_held_out_rows_are_judged_in_a_worker(recipe):
    rows, rewards = rows_and_rewards(recipe(reward_timeout=60.0))
    assert rewards["accuracy"](**FORMULA) == [1.0]
    assert len(rows) == 1


def test_without_workers_they_are_judged_here(recipe):
    [guard], weights = guarded_rewards(recipe(reward_workers=0), ["solution"])
    assert guard.pool is None and guard.timeout == 5.0 and weights == [1.0]
    with pytest.raises(ValueError, match="reads the column 'solution'"):
        guarded_rewards(recipe(), ["prompt"])
