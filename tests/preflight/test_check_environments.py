"""`check` and `play` with rows of several environments."""

import pytest
from datasets import Dataset

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.cli.main import main
from grpo_ext.evaluation.evaluate_recipe import evaluate_on
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.play_recipe import begin_game, played_turns
from grpo_ext.recipe.difference import as_yaml
from grpo_ext.run.from_recipe import guarded_rewards, train_rows
from tests.support.broken_environments import recipe_values
from tests.support.episode_run import WORLD
from tests.support.logs import json_rows, write_json_rows
from tests.support.places import REPO

WORLDS = f"{REPO}/tests/support/worlds.py"
NAMES = ("counting", None, "wandering", "wandering")
ENVIRONMENTS = {"counting": WORLD, "wandering": {"name": f"{WORLDS}:Wandering", "turn_tokens": 5}}
REWARDS = [
    {"name": "environment", "key": "even", "label": "even", "tasks": ["counting"]},
    {"name": "environment", "tasks": ["wandering"]},
    {"name": "accuracy", "tasks": ["single_turn"]},
]


def values(folder, model, **changes):
    rows = []
    for number in range(8):
        prompt = [{"role": "user", "content": f"Play game {number}."}]
        name = NAMES[number % 4]
        rows.append({"prompt": prompt, "seed": number, "environment": name, "solution": "4"})
    usual = {
        "environments": ENVIRONMENTS,
        "reward_funcs": REWARDS,
        "per_device_train_batch_size": 16,
        "num_generations": 2,
        "max_completion_length": 40,
        "max_steps": 1,
        "save_strategy": "no",
        "log_samples": 1.0,
    }
    recipe = recipe_values(folder, model, None, **{**usual, **changes})
    write_json_rows(folder / "rows.jsonl", rows)
    return recipe


def test_check_plays_each_and_tries_its_rewards(tmp_path, tiny_folder):
    findings = check_recipe(None, values(tmp_path, tiny_folder))
    assert findings.sound, findings.problems
    trials = findings.figures["rewards_by_task"]
    assert {task: set(trial["scores"]) for task, trial in trials.items()} == {
        "counting": {"even"},
        "wandering": {"environment"},
        "single_turn": {"accuracy"},
    }
    assert findings.figures["prompts"]["tokens"]["max"] > 0


def test_check_names_the_environment_that_fails(tmp_path, tiny_folder):
    environments = {**ENVIRONMENTS, "wandering": f"{WORLDS}:Failing"}
    findings = check_recipe(None, values(tmp_path, tiny_folder, environments=environments))
    [problem] = findings.problems
    assert "environment wandering: step fails on every call that was tried" in problem.message


def test_check_names_a_row_with_another_name(tmp_path, tiny_folder):
    environments = {"counting": WORLD, "wondering": ENVIRONMENTS["wandering"]}
    findings = check_recipe(None, values(tmp_path, tiny_folder, environments=environments))
    assert any(
        "unknown environment 'wandering'. Did you mean 'wondering'?" in problem.message
        for problem in findings.problems
    )


@pytest.mark.parametrize("number, turns", [(1, 3), (2, 1), (3, 4)])
def test_play_chooses_by_row(tmp_path, tiny_folder, number, turns):
    game = begin_game(load_recipe(None, values(tmp_path, tiny_folder)), number)
    episode = played_turns(game, ["7"] * 6)
    assert episode.turns == turns
    [(name, score)] = [(n, s) for n, s in game.scores(episode).items() if s is not None]
    assert name == {1: "even", 2: "accuracy", 3: "environment"}[number]
    assert 0 <= score <= 1


def test_a_run_its_replay_and_an_evaluation(tmp_path, tiny_folder, capsys):
    file = tmp_path / "recipe.yaml"
    file.write_text(as_yaml(values(tmp_path, tiny_folder)))
    recipe = load_recipe(str(file))
    rows = train_rows(recipe)
    assert isinstance(rows, Dataset)
    rewards, _ = guarded_rewards(recipe, rows.column_names)
    trainer = GRPOExtTrainer(str(tiny_folder), rewards, recipe.training, rows)
    trainer.train()
    samples = json_rows(tmp_path / "out" / "samples.jsonl")
    assert {sample["task"] for sample in samples} == {"counting", "wandering", "single_turn"}
    of_world = next(i for i, sample in enumerate(samples, 1) if sample["task"] == "wandering")
    replay = ["--replay", str(tmp_path / "out" / "samples.jsonl"), "--line", str(of_world)]
    assert main(["play", "--config", str(file), *replay]) == 0
    assert "match line" in capsys.readouterr().out
    functions = {reward.__name__: reward for reward in rewards}
    summary, _ = evaluate_on(recipe, str(tiny_folder), list(rows), functions, num_samples=0)
    greedy = summary["greedy"]
    assert greedy["environments/counting/episodes/turns"] == 3
    assert greedy["tasks/wandering/environment"] is not None
    assert greedy["tasks/single_turn/accuracy"] == 0
