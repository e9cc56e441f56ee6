"""Episodes with given turns, without a model."""

import importlib

import pytest

from grpo_ext import Environment, play
from grpo_ext.common.modules import load_file, load_module
from grpo_ext.environments.open_environments import _opened
from tests.support.worlds import Counting, Faulty

CLOSING = """
from grpo_ext import Environment


class Closing(Environment):
    def step(self, text):
        return "", True

    def close(self):
        pass
"""
ROW = {"nums": [3, 5, 8], "target": 10}


def test_texts_are_answered_until_the_environment_ends_the_episode():
    played = play(Counting(most=2), ["a", "bb", "not played"], {"seed": 3})
    assert played.prompt == [{"role": "user", "content": "seed 3"}]
    assert played.messages == [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "1 of 2"},
        {"role": "assistant", "content": "bb"},
    ]
    assert played.end == "environment" and played.counts.turns == 2 and played.errors == []
    assert played.state == {"score": 0.5, "most": 2, "turns": 2, "even": 1}


def test_an_episode_goes_on_where_the_turns_run_out_and_ends_at_a_limit_of_the_recipe():
    assert play(Counting(), ["a"]).end == ""
    name = f"{Counting.__module__}:Counting"
    played = play({"name": name, "turns": 2, "most": 3}, ["a", "b", "c"])
    assert played.end == "turns" and played.counts.at_turn_limit and played.counts.turns == 2


def test_tools_are_called():
    call = {"name": "check", "arguments": {"expression": "8 + 5 - 3"}}
    played = play("check", [call, {"name": "chek"}, "<answer>8 + 5 - 3</answer>"], ROW)
    answers = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert answers == ["yes", "error: there is no tool 'chek'; available tools: check"]
    counts = played.counts
    assert (counts.calls, counts.failed_calls, counts.calls_by_tool) == (2, 1, {"check": 1})


def test_failures_are_named_with_file_and_line():
    played = play(Faulty("raise none raise"), ["a", "b", "c", "d"])
    assert played.end == "failures" and played.counts.failures == played.counts.turns == 1
    [error] = played.errors
    assert "RuntimeError: no idea" in error and "worlds.py" in error


def test_tools_that_raise_are_named_with_file_and_line():
    class Shop(Environment):
        """A tool with a mistyped attribute, and one that refuses its argument."""

        def reset(self, row):
            return ""

        def tools(self):
            return [self.look]

        def look(self, item: str) -> str:
            """Look.

            Args:
                item: The item.
            """
            return self.lookd[item]

    played = play(Shop(), [{"name": "look", "arguments": {"item": "tea"}}])
    [error] = played.errors
    assert "AttributeError: 'Shop' object has no attribute 'lookd'" in error
    assert "test_play.py" in error
    assert (played.counts.failures, played.counts.failed_calls) == (0, 1)


def test_a_file_is_imported_once_under_whatever_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = REWARD_AND_WORLD.format(reward="paid_first")
    (tmp_path / "named_first.py").write_text(text)
    (tmp_path / "file_first.py").write_text(REWARD_AND_WORLD.format(reward="paid_second"))
    module = importlib.import_module("named_first")
    assert load_file("named_first.py") is module
    assert play({"name": "named_first.py:World"}, ["a"]).end == "environment"
    module = load_file("file_first.py")
    assert load_module("file_first") is module
    assert play({"name": "file_first:World"}, ["a"]).end == "environment"


REWARD_AND_WORLD = """
import grpo_ext


@grpo_ext.register("{reward}")
def reward(completions):
    return [0.0 for _ in completions]


class World(grpo_ext.Environment):
    def step(self, text):
        return "", True
"""


def test_environments_that_play_makes_are_closed(tmp_path):
    file = tmp_path / "closing.py"
    file.write_text(CLOSING)
    before = len(_opened)
    played = play(f"{file}:Closing", ["a"])
    assert played.end == "environment" and len(_opened) == before
    with pytest.raises(ValueError, match="a string or a call"):
        play(f"{file}:Closing", [7])
    assert len(_opened) == before


def test_what_is_no_environment_or_turn_is_refused():
    with pytest.raises(ValueError, match="Pass an instance of an environment's class"):
        play(Counting, ["a"])
    for turn in (7, {"name": "check", "args": {}}):
        with pytest.raises(ValueError, match="a string or a call"):
            play(Counting(), [turn])
