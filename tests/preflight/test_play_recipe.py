"""`grpo-ext play`: typed, scripted, by the model, and a line of samples.jsonl again."""

import io
import json
import os
import time
from copy import deepcopy
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext import GRPOExtTrainer, load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.play_recipe import begin_game, played_turns
from grpo_ext.preflight.replay import differences, play_again, read_sample
from grpo_ext.recipe.difference import as_yaml
from grpo_ext.run.from_recipe import eval_rows, guarded_rewards, train_rows
from tests.support.broken_environments import recipe_values
from tests.support.episode_run import WORLD
from tests.support.logs import json_rows, write_json_rows

REWARDS = [{"name": "environment"}, {"name": "environment", "key": "even", "label": "even"}]


def values(folder: Path, model: Path) -> dict:
    prompts = [[{"role": "user", "content": f"Play game {n}."}] for n in range(8)]
    own = {
        "eval_dataset_name": str(folder / "held_out.jsonl"),
        "reward_funcs": REWARDS,
        "per_device_train_batch_size": 8,
        "num_generations": 2,
        "max_completion_length": 40,
        "max_steps": 1,
        "save_strategy": "no",
        "eval_temperature": 0.0,
    }
    recipe = recipe_values(folder, model, WORLD, **own)
    write_json_rows(folder / "rows.jsonl", [{"prompt": prompt, "game": 1} for prompt in prompts])
    write_json_rows(folder / "held_out.jsonl", [{"prompt": prompts[0], "game": 2}] * 2)
    return recipe


def run_of(folder: Path, model: Path, **changes):
    """Train and evaluate; return the recipe, its file, and the log of the run."""
    file = folder / "recipe.yaml"
    file.write_text(as_yaml({**values(folder, model), **changes}))
    recipe = load_recipe(str(file))
    rows = train_rows(recipe)
    assert isinstance(rows, Dataset)
    rewards, _ = guarded_rewards(recipe, rows.column_names)
    trainer = GRPOExtTrainer(str(model), rewards, recipe.training, rows)
    trainer.train()
    trainer.evaluate(eval_rows(recipe))
    return recipe, file, folder / "out" / "samples.jsonl"


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("play"), tiny_folder)


@pytest.fixture(scope="module")
def short_run(tiny_folder, tmp_path_factory):
    """A run whose episodes are cut off."""
    return run_of(tmp_path_factory.mktemp("short"), tiny_folder, max_completion_length=24)


@pytest.fixture(scope="module")
def wordy_run(tiny_folder, tmp_path_factory):
    """A run whose answers are cut off."""
    wordy = {**WORLD, "name": WORLD["name"].replace("Counting", "Wordy")}
    return run_of(tmp_path_factory.mktemp("wordy"), tiny_folder, environment=wordy)


@pytest.mark.parametrize(
    "name, ends",
    [("run", {"environment"}), ("short_run", {"room"}), ("wordy_run", {"room"})],
)
def test_every_logged_episode_played_again_is_identical(name, ends, request):
    recipe, _, log = request.getfixturevalue(name)
    samples = json_rows(log)
    found_ends = set()
    has_ids = 0
    for number, logged in enumerate(samples, 1):
        sample = read_sample(log, number)
        assert sample["ids_checksum"] == logged["ids_checksum"]
        game = begin_game(recipe, sample=sample)
        play_again(game.episode, sample)
        assert differences(game.episode, game.scores(game.episode), sample) == []
        assert game.row["game"] == (2 if logged["mode"] == "eval" else 1)
        turns = game.episode.logged()["messages"]
        assert turns == logged["messages"]
        assert logged["turns"] == game.episode.turns and logged["end"] == game.episode.end
        assert logged["environment_time"] > 0
        found_ends.add(game.episode.end)
        assert game.episode.cut_answers == (name == "wordy_run")
        has_ids += sum("raw_ids" in turn for turn in turns)
    modes = [sample["mode"] for sample in samples]
    assert modes == ["train"] * 8 + ["eval"] * 2 and found_ends == ends and has_ids


def test_a_call_is_typed_as_the_model_writes_it(tiny_folder, tmp_path):
    """Qwen2.5's template describes the tool, and a logged call is played again from its markup."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text()
    tokenizer.save_pretrained(tmp_path)
    settings = {
        "model_name_or_path": str(tmp_path),
        "task": "countdown",
        "environment": "check",
        "reward_funcs": ["countdown"],
        "output_dir": str(tmp_path / "out"),
        "max_completion_length": 2000,
        "use_cpu": True,
        "bf16": False,
    }
    recipe = load_recipe(None, settings)
    game = begin_game(recipe, 2)
    assert "expression" in str(tokenizer.decode(game.episode.prompt_ids))
    call = '<tool_call>\n{"name": "check", "arguments": {"expression": "1 + 1"}}\n</tool_call>'
    played_turns(game, [call, "<answer>1 + 1</answer>"])
    episode = game.episode
    assert episode.messages[1]["role"] == "tool" and episode.messages[1]["content"][:3] == "no,"
    assert episode.end == "environment" and game.scores(episode)["countdown"] < 1
    sample = {
        **episode.logged(),
        "mode": "train",
        "finish_reason": "stop",
        "rewards": game.scores(episode),
    }
    assert sample["messages"][0]["raw"] == f"{call}<|im_end|>"
    again = begin_game(recipe, sample=sample)
    assert again.row == game.row
    play_again(again.episode, sample)
    assert again.episode.ids == episode.ids
    assert differences(again.episode, again.scores(again.episode), sample) == []


def test_what_is_not_the_same_is_named(run, tmp_path, capsys):
    _, file, log = run
    [sample, *_] = json_rows(log)
    same = tmp_path / "samples.jsonl"
    write_json_rows(same, [sample])
    assert main(["play", "--config", str(file), "--replay", str(same)]) == 0
    assert "match line 1" in capsys.readouterr().out
    changed = deepcopy(sample)
    turn = changed["messages"][0]
    turn.pop("raw_ids", None)
    turn["raw"] = "other"
    changed["rewards"]["even"] = 77.0
    write_json_rows(same, [changed])
    assert main(["play", "--config", str(file), "--replay", str(same)]) == 1
    printed = capsys.readouterr().out
    assert "differs  tokens" in printed and "reward even" in printed
    longer = deepcopy(sample)
    longer["messages"].append({"role": "user", "content": "more"})
    write_json_rows(same, [longer])
    assert main(["play", "--config", str(file), "--replay", str(same)]) == 1
    number = len(longer["messages"])
    assert f"differs  message {number}: 'no message', not 'more'" in capsys.readouterr().out


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
    script.write_text("3\n")  # a turn on each line
    assert main(["play", "--config", str(file), "--turns", str(script)]) == 0
    out = capsys.readouterr().out
    assert "cut off: no room, turns or input were left, after 1 turn\n" in out
    assert "tokens   2 of 40 used: 2 by the model" in out


def test_the_model_plays(run, capsys):
    _, file, _ = run
    assert main(["play", "--config", str(file), "--by-model"]) == 0
    printed = capsys.readouterr().out
    assert "turn of 4 tokens" in printed and " of 40 used" in printed


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"messages": [{"role": "assistant", "raw": 7}]},
            "the `raw` of one of its turns is not a string, or is longer than",
        ),
        ({"messages": [{"role": "assistant", "raw": "a", "raw_ids": [10**9]}]}, "not token ids"),
        ({"messages": [{"role": "assistant", "raw": "a", "raw_ids": "x"}]}, "a list of integers"),
        ({"messages": 3}, "cannot be replayed"),
        ({"seed": 1}, "No row of the recipe"),
        ({"ids_checksum": None}, "cannot be replayed"),
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
    assert "needs a recipe with an environment" in capsys.readouterr().err


def test_hostile_files_neither_block_nor_exhaust(run, tmp_path, capsys):
    _, file, log = run
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for way in ("--replay", "--turns"):
        assert main(["play", "--config", str(file), way, str(pipe)]) == 2
        assert "not a plain file" in capsys.readouterr().err
    [sample, *_] = json_rows(log)
    turn = {"role": "assistant", "content": "x", "raw": "x" * 1000}
    many = tmp_path / "many.jsonl"
    write_json_rows(many, [{**sample, "messages": [turn] * 10_000}])
    before = time.process_time()
    assert main(["play", "--config", str(file), "--replay", str(many)]) == 1
    assert time.process_time() - before < 20
    assert "after 3 turns" in capsys.readouterr().out
