"""Every environment that is made is closed, however the run ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
from datasets import Dataset
from transformers import AutoTokenizer

from grpo_ext.environments.open_environments import close_all
from grpo_ext.environments.start_episodes import beginning, beginning_with_tools
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.recipe.difference import as_yaml
from tests.support.broken_environments import recipe_values
from tests.support.closing_world import noted
from tests.support.episode_run import ROWS, make
from tests.support.forked import LIMIT
from tests.support.places import REPO

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
ARGS = SimpleNamespace(
    max_completion_length=100,
    chat_template_kwargs=None,
    generation_kwargs=None,
    max_tool_calling_iterations=None,
)


@pytest.fixture
def events(tmp_path, monkeypatch):
    """The folder in which environments note that they are made and closed."""
    folder = tmp_path / "events"
    folder.mkdir()
    monkeypatch.setenv("CLOSING_WORLD", str(folder))
    close_all()  # those of other tests
    return folder


@pytest.mark.parametrize("name", ["Closing", "AsyncClosing"])
@pytest.mark.parametrize(
    ("case", "exit_code", "played"), [("ends", 0, 200), ("signal", 75, 16), ("reward", 1, 8)]
)
def test_all_are_closed(tiny_folder, tmp_path, events, name, case, exit_code, played):
    command = [sys.executable, "-m", "tests.support.closing_run"]
    command += [str(tiny_folder), str(tmp_path / "out"), name, case]
    process = subprocess.run(
        command, cwd=REPO, env=os.environ, capture_output=True, text=True, timeout=LIMIT
    )
    assert process.returncode == exit_code, process.stderr
    # the checks of the settings make one each, which play nothing
    assert noted(events, "made") == noted(events, "closed") > played


@pytest.mark.parametrize("words", [["eval", "--train_rows", "2"], ["check"], ["play", "--turns"]])
def test_sigterm_closes_those_of_a_command(tiny_folder, tmp_path, events, words):
    values = recipe_values(tmp_path, tiny_folder, "tests.support.closing_world:Terminating")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(values))
    turns = tmp_path / "turns.txt"
    turns.write_text("a")
    command = [sys.executable, "-m", "grpo_ext", *words, *([turns] if "play" in words else [])]
    process = subprocess.run(
        [*command, "--config", recipe],
        cwd=REPO,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert process.returncode == 143, process.stderr
    assert noted(events, "made") == noted(events, "closed") > 0


def test_those_of_an_evaluation_are_closed_after_their_scores(tiny_folder, tmp_path, events):
    world = {"name": "tests.support.closing_world:Closing", "turn_tokens": 4, "threads": 3}
    trainer = make(
        tiny_folder, tmp_path, rewards=["environment"], environment=world, eval_temperature=0.0
    )
    figures = trainer.evaluate(Dataset.from_list(ROWS))
    assert figures["eval_environment"] is not None
    assert noted(events, "closed") == len(ROWS) == 8
    close_all()
    assert noted(events, "closed") == noted(events, "made")


def test_those_of_check_are_closed(tiny_folder, tmp_path, events):
    world = "tests.support.closing_world:Closing"
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, world))
    assert findings.sound, findings.problems
    assert noted(events, "made") == noted(events, "closed") > 3


def test_a_close_that_fails_is_named_and_ends_nothing(tiny_folder, events, caplog):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    begin = beginning(
        {"": "tests.support.closing_world:FailingClose"},
        tokenizer,
        [tokenizer.eos_token_id],
        ARGS,
    )
    begin(ROWS[:2])
    with caplog.at_level(logging.WARNING, "grpo_ext.environments.failures"):
        close_all()
    assert noted(events, "closed") == 3
    [warned] = [record.message for record in caplog.records]
    assert "close failed. The environment's resources may not have been released." in warned
    assert "closing_world.py:" in warned and "in close)" in warned


class OfTRL:
    """An environment of the kind that `environment_factory` takes."""

    made = 0

    def __init__(self):
        OfTRL.made += 1
        self.closed = 0

    def reset(self, **row):
        pass

    def close(self):
        self.closed += 1

    def look(self, where: str) -> str:
        """Look.

        Args:
            where: The place.
        """
        return where


def test_instances_of_a_factory_are_used_until_the_run_ends(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = TEMPLATE.read_text()
    ends = [tokenizer.eos_token_id]
    begin = beginning_with_tools((), {None: OfTRL}, tokenizer, ends, ARGS)
    first = begin(ROWS[:2])
    assert [tool.__name__ for tool in first[0].environment.tools()] == ["look"]
    again = begin(ROWS[:2])
    assert [one.environment for one in again] == [one.environment for one in first]
    close_all()
    close_all()
    assert [one.environment.instance.closed for one in first] == [1, 1]
    new = begin(ROWS[:2])
    assert OfTRL.made == 4 and [one.environment.instance.closed for one in new] == [0, 0]
    close_all()
