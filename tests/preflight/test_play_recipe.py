"""`grpo-ext play`: typed, scripted, by the model, and a line of samples.jsonl again."""

import io
import json
from copy import deepcopy
from pathlib import Path

import pytest
from datasets import Dataset

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.play_recipe import begin_game
from grpo_ext.preflight.replay import differences, play_again, read_sample
from grpo_ext.recipe.difference import as_yaml
from grpo_ext.run.from_recipe import guarded_rewards, train_rows
from tests.support.episode_run import WORLD
from tests.support.logs import json_rows, write_json_rows

REWARDS = [{"name": "environment"}, {"name": "environment", "key": "even", "label": "even"}]


def values(folder: Path, model: Path) -> dict:
    prompts = [[{"role": "user", "content": f"Play game {n}."}] for n in range(8)]
    write_json_rows(folder / "rows.jsonl", [{"prompt": prompt, "game": 1} for prompt in prompts])
    return {
        "model_name_or_path": str(model),
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "task": "prompts",
        "dataset_name": str(folder / "rows.jsonl"),
        "environment": WORLD,
        "reward_funcs": REWARDS,
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 40,
        "max_steps": 1,
        "save_strategy": "no",
        "eval_temperature": 0.0,
    }


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    """A recipe, its file, and the log of a run of it."""
    folder = tmp_path_factory.mktemp("play")
    settings = values(folder, tiny_folder)
    file = folder / "recipe.yaml"
    file.write_text(as_yaml(settings))
    recipe = load_recipe(str(file))
    rows = train_rows(recipe)
    assert isinstance(rows, Dataset)
    rewards, _ = guarded_rewards(recipe, rows.column_names)
    trainer = GRPOExtTrainer(str(tiny_folder), rewards, recipe.training, rows)
    trainer.train()
    return recipe, file, folder / "out" / "samples.jsonl"


def test_every_logged_episode_played_again_is_identical(run):
    recipe, _, log = run
    samples = json_rows(log)
    ends = set()
    has_ids = 0
    for number, logged in enumerate(samples, 1):
        sample = read_sample(log, number)
        assert sample["ids_checksum"] == logged["ids_checksum"]
        game = begin_game(recipe, sample=sample)
        play_again(game.episode, sample)
        assert differences(game.episode, game.scores(game.episode), sample) == []
        turns = game.episode.logged()["messages"]
        assert turns == logged["messages"]
        ends.add(game.episode.end)
        has_ids += sum("raw_ids" in turn for turn in turns)
    assert len(samples) == 8 and "environment" in ends and has_ids


def test_what_is_not_the_same_is_named(run, tmp_path, capsys):
    _, file, log = run
    [sample, *_] = json_rows(log)
    same = tmp_path / "samples.jsonl"
    write_json_rows(same, [sample])
    assert main(["play", "--config", str(file), "--replay", str(same)]) == 0
    assert "the same as line 1" in capsys.readouterr().out
    changed = deepcopy(sample)
    turn = changed["messages"][0]
    turn.pop("raw_ids", None)
    turn["raw"] = "other"
    changed["rewards"]["even"] = 77.0
    write_json_rows(same, [changed])
    assert main(["play", "--config", str(file), "--replay", str(same)]) == 1
    printed = capsys.readouterr().out
    assert "differs  tokens" in printed and "reward even" in printed


def test_turns_of_a_file_and_typed_ones_are_played_alike(run, tmp_path, capsys, monkeypatch):
    _, file, _ = run
    script = tmp_path / "turns.json"
    script.write_text(json.dumps(["3", "4", "5"]))
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n4\n5\n6\n"))
    printed = []
    for words in (["--turns", str(script)], []):
        assert main(["play", "--config", str(file), "--row", "2", *words]) == 0
        printed.append(capsys.readouterr().out)
    for out in printed:
        assert "1 of 3" in out and "Play game 1." in out and "3<|im_end|>" in out
        assert "end      the environment ended the episode, after 3 turns" in out
    assert printed[1].endswith(printed[0][printed[0].index("turn of 2 tokens") :])


def test_the_model_plays(run, capsys):
    _, file, _ = run
    assert main(["play", "--config", str(file), "--by-model"]) == 0
    printed = capsys.readouterr().out
    assert "turn of 4 tokens" in printed and " of 40 used" in printed


@pytest.mark.parametrize(
    "change, words",
    [
        ({"messages": [{"role": "assistant", "raw": 7}]}, "`raw` that is no text"),
        ({"messages": [{"role": "assistant", "raw": "a", "raw_ids": [10**9]}]}, "no token ids"),
        ({"messages": [{"role": "assistant", "raw": "a", "raw_ids": "x"}]}, "no token ids"),
        ({"messages": 3}, "holds no episode"),
        ({"seed": 1}, "No row of the recipe"),
        ({"ids_checksum": None}, "holds no episode"),
    ],
)
def test_a_damaged_line_is_refused(run, tmp_path, capsys, change, words):
    _, file, log = run
    [sample, *_] = json_rows(log)
    damaged = tmp_path / "samples.jsonl"
    write_json_rows(damaged, [{**sample, **change}])
    assert main(["play", "--config", str(file), "--replay", str(damaged)]) == 2
    assert words in capsys.readouterr().err


def test_a_recipe_without_an_environment_is_refused(run, capsys):
    _, file, _ = run
    assert main(["play", "--config", str(file), "--environment", "null"]) == 2
    assert "needs a recipe with `environment`" in capsys.readouterr().err
