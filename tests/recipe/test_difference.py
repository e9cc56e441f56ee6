"""A folder that holds a run of another recipe: the difference is shown key by key, what shapes nothing is left out."""

from __future__ import annotations

import pytest

from grpo_ext.recipe.difference import SAVED, as_yaml, check_same_run, differences
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError

BASE = {
    "model_name_or_path": "m",
    "eval_temperature": 0,
    "task": "countdown",
    "num_generations": 4,
    "use_cpu": True,
}


def recipe(folder, **settings):
    return load_recipe(None, {**BASE, "output_dir": str(folder), **settings})


def save_recipe(recipe, folder):
    (folder / SAVED).write_text(as_yaml(recipe.flat), encoding="utf-8")


def test_what_shapes_training_differs_and_nothing_else(tmp_path):
    save_recipe(
        recipe(tmp_path, learning_rate=1e-5, max_number=9, logging_steps=5, temperature=1.0),
        tmp_path,
    )
    now = recipe(
        tmp_path,
        learning_rate=2e-5,
        logging_steps=1,
        save_steps=3,
        health_action="stop",
        eval_steps=7,
        beta=0.04,
        preset=None,
    )
    found = differences(now, tmp_path)
    assert found.pop("max_number") == (9, now.get("max_number"))
    assert found == {
        "learning_rate": (1e-5, 2e-5),
        "beta": (0.0, 0.04),
    }  # temperature was written out as its default


def test_evaluation_counts_where_it_draws_from_training(tmp_path):
    save_recipe(recipe(tmp_path, eval_temperature=None), tmp_path)
    assert differences(recipe(tmp_path, eval_temperature=None, eval_steps=7), tmp_path) == {
        "eval_steps": (None, 7)
    }


def test_rewards_and_their_options_count(tmp_path):
    save_recipe(
        recipe(tmp_path, reward_funcs=["countdown", {"name": "format", "weight": 0.5}]), tmp_path
    )
    same = recipe(tmp_path, reward_funcs=["countdown", {"name": "format", "weight": 0.5}])
    assert differences(same, tmp_path) == {}
    assert list(differences(recipe(tmp_path, reward_funcs=["countdown"]), tmp_path)) == [
        "reward_funcs"
    ]


def test_a_run_of_another_recipe_is_refused_with_what_to_do(tmp_path):
    save_recipe(recipe(tmp_path, learning_rate=1e-5), tmp_path)
    other = recipe(tmp_path, learning_rate=2e-5)
    check_same_run(other)  # it left nothing behind
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-10").mkdir()
    check_same_run(recipe(tmp_path, learning_rate=1e-5))
    with pytest.raises(ValueError) as refused:
        check_same_run(other)
    told = str(refused.value)
    assert "learning_rate: 1e-05  ->  2e-05" in told
    assert "--output_dir FOLDER" in told and "--resume never" in told
    assert f"--resume {tmp_path / 'checkpoint-10'}" in told
    for way in ("never", str(tmp_path / "checkpoint-10")):
        check_same_run(recipe(tmp_path, learning_rate=2e-5, resume=way))
    check_same_run(recipe(tmp_path / "other", learning_rate=2e-5))


def test_where_to_begin_is_said_once_and_exists(tmp_path):
    with pytest.raises(RecipeError, match="there is no folder 'nowhere'"):
        recipe(tmp_path, resume="nowhere")
    with pytest.raises(RecipeError, match="both say where to begin"):
        recipe(tmp_path, resume="never", resume_from_checkpoint="true")
    assert recipe(tmp_path, resume_from_checkpoint="true").get("resume") == "auto"


def test_a_finished_run_goes_on_where_it_is_made_longer(tmp_path):
    save_recipe(recipe(tmp_path, max_steps=10), tmp_path)
    (tmp_path / "checkpoint-10").mkdir()
    with pytest.raises(ValueError, match="max_steps"):  # its learning rate was meant to end there
        check_same_run(recipe(tmp_path, max_steps=20))
    (tmp_path / "trainer_state.json").write_text("{}")
    check_same_run(recipe(tmp_path, max_steps=20))
    for other in ({"max_steps": 5}, {"max_steps": 20, "beta": 0.1}, {"max_steps": -1}):
        with pytest.raises(ValueError, match="another recipe"):
            check_same_run(recipe(tmp_path, **other))
    (tmp_path / "checkpoint-10").rmdir()
    with pytest.raises(ValueError, match="another recipe"):  # there is nothing to go on from
        check_same_run(recipe(tmp_path, max_steps=20))


def test_a_saved_recipe_that_is_a_bomb_is_none(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines))
    assert differences(recipe(tmp_path), tmp_path) == {}
