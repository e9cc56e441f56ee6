"""What `check` says before it imports TRL: slips alone, in the words of `load_recipe`, and only by a table of this source."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import REPO

from grpo_ext.recipe import early_check
from grpo_ext.recipe.load import load_recipe, write_key_table
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import read_settings

GIVEN = {"model_name_or_path": "m"}
SLIPS = [
    {"learning_rte": 1.0},
    {"loss_type": "drgrpo"},
    {"scale_rewards": "grp"},
    {"lr_scheduler_type": "cosin"},
    {"group_filter": "dropp", "preset": "grpo_papr"},
    {"max_story_steps": 1},
    {"task": "countdwon"},
    {"completion_only_loss": True},
    {"torch_dtype": "float32"},
    {"ignore_bias_buffers": True},
]


ALL = sorted((REPO / "recipes").glob("*/*.yaml"))
TRAINING = [path for path in ALL if "sft" not in path.stem and path.parent.name != "accelerate"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grpo_ext" / "keys.json"


@pytest.mark.parametrize("slip", SLIPS, ids=str)
def test_slips_are_told_in_the_same_words_as_later(slip):
    write_key_table()
    early = early_check.early_problems(read_settings(None, {**GIVEN, **slip}))
    with pytest.raises(RecipeError) as later:
        load_recipe(None, {**GIVEN, **slip})
    assert early and early == later.value.problems


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_what_is_right_has_no_slip(path):
    write_key_table()
    words = ["--preset", "null", "--eval_strategy", "no", "--scale_rewards", "false", "--report_to", "none"]
    assert early_check.early_problems(read_settings(path, words)) == []


def test_a_loss_of_a_plugin_is_no_slip():
    write_key_table()
    assert early_check.early_problems(read_settings(None, {"loss_type": "mine", "reward_plugins": ["mine.py"]})) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"stamp": 1, "grpo": {}, "sft": []}'])
def test_a_table_of_another_source_tells_nothing(cache, text):
    write_key_table()
    cache.write_text(text)
    assert early_check.early_problems(read_settings(None, {"learning_rte": 1.0})) == []


def test_a_folder_that_cannot_be_written_keeps_none(cache):
    cache.parent.parent.write_text("a file")
    write_key_table()
    assert early_check.early_problems(read_settings(None, {"learning_rte": 1.0})) == []


PROGRAM = """
import sys
from grpo_ext.cli.main import main
code = main(["check", "--config", *sys.argv[1:]])
print(code, *sorted({"torch", "trl", "transformers", "datasets"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "text, code, words",
    [
        ("learning_rte: 1.0\n", "1", "Did you mean 'learning_rate'?"),
        ("loss_type: drgrpo\n", "1", "Did you mean 'dr_grpo'?"),
        ("a: [\n", "1", "not a YAML file"),
        (None, "2", "There is no recipe"),
    ],
)
def test_the_command_answers_without_torch(tmp_path, text, code, words):
    write_key_table()
    path = tmp_path / "recipe.yaml"
    if text is not None:
        path.write_text("model_name_or_path: m\n" + text)
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPO, timeout=100)
    assert words in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == code
    if code == "1":
        found = json.loads(subprocess.run([*command, "--json"], capture_output=True, cwd=REPO).stdout[: -len("1\n")])
        assert not found["sound"] and "nothing else was checked" in found["notes"][0]["message"]
