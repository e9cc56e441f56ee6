"""`grpo-ext tasks` lists what a recipe can name, a line each."""

from __future__ import annotations

import pytest

from grpo_ext.cli.main import main
from grpo_ext.environments import base
from grpo_ext.tasks import MODULES


@pytest.fixture
def listed(capsys) -> dict[str, list[str]]:
    """The lines below each key of a recipe."""
    assert main(["tasks"]) == 0
    found: dict[str, list[str]] = {}
    key = ""
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("  "):
            found[key].append(line)
        else:
            key = line
            found[key] = []
    return found


def test_all_tasks_and_environments_are_listed_a_line_each(listed):
    names = {key: [line.split()[0] for line in lines] for key, lines in listed.items()}
    assert names == {"task:": [*MODULES], "environment:": [*base.MODULES]}
    assert "countdown" in MODULES and "guess" in base.MODULES
    for line in (*listed["task:"], *listed["environment:"]):
        assert line.endswith(".") and len(line) < 128 and len(line.split()) > 4, line


def test_an_environment_is_listed_with_its_first_sentence_and_its_own_options(listed):
    check, guess = listed["environment:"]
    words = "Find a number; each answer says whether the guess is too low or too high. Takes low=1, high=31."
    assert guess.split(maxsplit=1) == ["guess", words]
    assert "Takes" not in check and check.split(maxsplit=1)[1].startswith("Lets the model check expressions")
