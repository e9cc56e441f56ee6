"""`grpo-ext rewards`, as a user calls it."""

import argparse

import pytest

from grpo_ext.cli import rewards
from grpo_ext.rewards import list_rewards
from tests.support.registry_state import registry_as_before

PLUGIN = """
from grpo_ext.rewards import Example, register

@register("{name}", examples=[Example("a", {score}), Example("b", 0.0)])
def reward(completions):
    "1 for an a."
    return [float(text == "a") for text in completions]
"""


@pytest.fixture
def command():
    """Runs the words of a command line and returns its exit code."""
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    rewards.add_parser(subparsers)

    def run(*words: object) -> int:
        args = parser.parse_args(list(map(str, words)))
        return args.run(args)

    with registry_as_before():
        yield run


def test_list_has_a_line_for_each(command, capsys):
    assert command("rewards", "list") == 0
    out = capsys.readouterr().out
    assert all(f"\n{info.name} " in "\n" + out for info in list_rewards())
    assert "columns nums, target; options tolerance=1e-05" in out
    assert "options max_completion_len, soft_punish_cache" in out


def test_show_has_doc_columns_options_and_examples(command, capsys):
    assert command("rewards", "show", "countdown") == 0
    out = capsys.readouterr().out
    for words in (
        "nums: the given numbers",
        "Columns:  nums, target",
        "tolerance=1e-05",
        "target=65",
        "55 + 36 - 7 - 19",
    ):
        assert words in out
    with pytest.raises(ValueError, match="Did you mean 'countdown'"):
        command("rewards", "show", "cuntdown")


def test_show_and_list_have_options_that_may_be_columns(command, capsys, tmp_path):
    path = tmp_path / "either.py"
    path.write_text(
        PLUGIN.format(name="either", score=1.0).replace(
            "(completions)", "(completions, most: int = 7)"
        )
    )
    assert command("rewards", "show", "--plugin", path, "either") == 0
    out = capsys.readouterr().out
    assert "Options:  most=7\n" in out and "is read from its column, if any: most" in out
    assert command("rewards", "list") == 0
    assert "options most=7" in capsys.readouterr().out


def test_check_passes_for_all_and_fails_for_a_broken_one(command, capsys, tmp_path):
    assert command("rewards", "check") == 0
    assert "FAILED" not in capsys.readouterr().out
    for name, score, code in (("good_one", 1.0, 0), ("broken_one", 0.5, 1)):
        path = tmp_path / f"{name}.py"
        path.write_text(PLUGIN.format(name=name, score=score))
        assert command("rewards", "check", "--plugin", path, name) == code
    assert "'a' gets 1.0, not 0.5" in capsys.readouterr().out


def test_check_wants_examples(command, capsys, tmp_path):
    path = tmp_path / "bare.py"
    path.write_text(
        PLUGIN.format(name="bare_one", score=1.0).replace(
            ', examples=[Example("a", 1.0), Example("b", 0.0)]', ""
        )
    )
    assert command("rewards", "check", "--plugin", path, "bare_one") == 1
    assert "no two examples have different scores" in capsys.readouterr().out


def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit):
        command("rewards", "--help")
    assert "examples:\n  grpo-ext " in capsys.readouterr().out
