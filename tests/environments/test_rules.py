"""What a recipe says of its environment, and what is answered where it is wrong."""

import pytest

from grpo_ext.environments.base import Environment, environment_class
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.guess import Guess


def test_a_name_and_options():
    rules = episode_rules({"name": "guess", "high": 15, "turns": 4, "turn_tokens": 6})
    assert (type(rules.make()), rules.make().high, rules.turns, rules.turn_tokens) == (
        Guess,
        15,
        4,
        6,
    )
    assert episode_rules("guess").turns == 8


class Turned(Environment):
    def __init__(self, turns: int = 3):
        self.turns = turns


@pytest.mark.parametrize(
    "given, words",
    [
        ("gues", "unknown environment 'gues'. Did you mean 'guess'?"),
        ({"turns": 4}, "environment needs a `name`, which must be a string"),
        ({"name": "guess", "hihg": 3}, "unknown option 'hihg'. Did you mean 'high'?"),
        ({"name": "guess", "turns": 0}, "turns is 0: it must be greater than 0"),
        ({"name": "guess", "turns": True}, "turns is True"),
        (
            {"name": "guess", "credit": "token"},
            "credit is 'token': it must be 'episode' or 'turn'.",
        ),
        ({"name": "guess", "turn_tokens": 2.5}, "turn_tokens is 2.5"),
        ({"name": "guess", "step_timeout": float("inf")}, "step_timeout is inf"),
        (
            {"name": "test_rules:Turned"},
            "has an option 'turns', but every environment has a key of that name",
        ),
        (
            {"name": "guess", "low": 40},
            "cannot be created with its options: low (40) must be less than high (31).",
        ),
        ("nowhere.py:World", "cannot load the environment 'nowhere.py:World'"),
        (
            "grpo_ext.tasks.guess:GuessTask",
            "is not an environment: expected a subclass of grpo_ext.Environment",
        ),
    ],
)
def test_what_is_wrong_is_named(given, words):
    with pytest.raises(ValueError) as told:
        episode_rules(given)
    assert words in str(told.value)


def test_one_in_a_file(tmp_path):
    file = tmp_path / "world.py"
    file.write_text("import grpo_ext\nclass World(grpo_ext.Environment):\n    pass\n")
    assert issubclass(environment_class(f"{file}:World"), Environment)
