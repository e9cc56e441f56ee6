"""`grpo-ext rewards` and `grpo-ext explain`, as a user calls them."""

import argparse
import json

import pytest
from registry_state import registry_as_before

from grpo_ext.cli import explain, rewards
from grpo_ext.rewards import list_rewards

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
    explain.add_parser(subparsers)

    def run(*words: object) -> int:
        args = parser.parse_args([str(word) for word in words])
        return args.run(args)

    with registry_as_before():
        yield run


@pytest.fixture
def rows(tmp_path):
    """600 rows for countdown, of which every third is right, every tenth has a broken target."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for i in range(600):
            text = "<answer>1 + 2</answer>" if i % 3 == 0 else "<answer>1 - 2</answer>"
            row = {"completion": text, "nums": [1, 2], "target": "three" if i % 10 == 1 else 3, "note": "\ud800é"}
            file.write(json.dumps(row) + "\n" + "\n" * (i % 5 == 0))
    return path


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
    path.write_text(PLUGIN.format(name="either", score=1.0).replace("(completions)", "(completions, most: int = 7)"))
    assert command("rewards", "show", "--plugin", path, "either") == 0
    out = capsys.readouterr().out
    assert "Options:  most=7\n" in out and "the column is read if there is one: most" in out
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
    path.write_text(PLUGIN.format(name="bare_one", score=1.0).replace(', examples=[Example("a", 1.0), Example("b", 0.0)]', ""))
    assert command("rewards", "check", "--plugin", path, "bare_one") == 1
    assert "must be an example that earns more" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [0, 2])
def test_score_streams_rows_into_a_file(command, rows, tmp_path, capsys, workers):
    output = tmp_path / "scored.jsonl"
    assert command("rewards", "score", "countdown", "--input", rows, "--output", output, "--workers", workers) == 0
    before = [json.loads(line) for line in rows.read_text().splitlines() if line]
    after = [json.loads(line) for line in output.read_text().splitlines()]
    assert [{**row, "countdown": None if i % 10 == 1 else float(i % 3 == 0)} for i, row in enumerate(before)] == after
    assert "600 rows, 0 declined, 60 failed" in capsys.readouterr().err


def test_score_to_standard_output_with_options(command, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "one two three four"}\n{"text": "one"}\n')
    options = ("--option", "target=2", "--option", "unit=words", "--column", "text")
    assert command("rewards", "score", "length", "--input", path, "--output", "-", *options) == 0
    out = capsys.readouterr().out
    assert [json.loads(line)["length"] for line in out.splitlines()] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"completion": "x", "nums": [1]}\n{oops}\n', r"rows\.jsonl:2: not JSON"),
        ('{"answer": "x"}\n', r"rows\.jsonl:1: no 'completion' here, only answer"),
        ("[1]\n", r"rows\.jsonl:1: no 'completion' here, only list"),
        ('{"completion": "x", "nums": [1]}\n', "reads the column 'target', which a row lacks; all have nums"),
    ],
)
def test_score_says_which_line_is_wrong(command, tmp_path, content, words):
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        command("rewards", "score", "countdown", "--input", path)


def test_score_refuses_what_it_cannot_run(command, rows):
    for words, error in (
        (("org/model",), "is a reward model"),
        (("format", "--option", "mode"), "key=value"),
        (("format", "--option", "mode=lose"), "Did you mean 'loose'"),
        (("fromat",), "Did you mean 'format'"),
    ):
        with pytest.raises(ValueError, match=error):
            command("rewards", "score", *words, "--input", rows)


def test_explain_countdown(command, capsys):
    nums = ("--nums", 19, 36, 55, 7, "--target", 65)
    assert command("explain", "countdown", *nums, "--completion", "<answer>55 + 36 - 7 - 19 = 65</answer>") == 0
    out = capsys.readouterr().out
    assert "Ignored, right of the first '=': 65" in out and "countdown 1: the answer is right." in out
    for text, words in (
        ("55 + 36 - 7 * 19", "its value is -42, not 65"),
        ("65", "it uses the numbers 65, but it must use 7, 19, 36, 55"),
        ("9**9", "the answer is not a plain expression: '**' is not allowed"),
        ("<answer>1", "there is no closed <answer> block"),
        ("<answer>1</answer><answer>2</answer>", "Only the first of 2 <answer> blocks counts."),
    ):
        assert command("explain", "countdown", *nums, "--completion", text) == 0
        assert words in capsys.readouterr().out


def test_explain_poem(command, capsys):
    given = ("水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去")
    assert command("explain", "poem", "--lines", *given, "--completion", "梦回故里花如雪") == 0
    first = capsys.readouterr().out
    assert "poem_format 0.429" in first and "poem_yun 0" in first
    assert command("explain", "poem", "--lines", *given, "一棹烟波去未迷") == 0
    second = capsys.readouterr().out
    assert "poem_format 1.000" in second and "poem_yun 1" in second


EXPLAINING = """
from grpo_ext.rewards import register
from grpo_ext.rewards.explanation import Explanation

def explain(completion: str, *, limits: list[int], loud: bool = False):
    return Explanation(f"{completion!r}, {limits}, {loud}")

@register("within", explain=explain)
def within(completions, limits, *, loud: bool = False):
    "1 within the limits."
    return [1.0 for _ in completions]
"""


def test_explain_a_reward_of_ones_own(command, capsys, tmp_path):
    plugin = tmp_path / "within.py"
    plugin.write_text(EXPLAINING)
    words = ("explain", "--plugin", plugin, "with", "--limits", 1, 2, "--completion", "no tags")
    assert command(*words) == 0
    assert capsys.readouterr().out == "'no tags', [1, 2], False\n"
    assert command(*words, "--loud") == 0
    assert capsys.readouterr().out == "'no tags', [1, 2], True\n"


def test_explain_names_what_it_lacks(command, capsys):
    with pytest.raises(ValueError, match=r"length has no explanations.*accuracy, countdown, poem_format, poem_yun"):
        command("explain", "length", "--completion", "x")
    with pytest.raises(ValueError, match="Did you mean 'length'"):
        command("explain", "lenth", "--completion", "x")
    with pytest.raises(SystemExit):
        command("explain", "countdown", "--nums", 1, "--completion", "x")
    assert "required: --target" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["rewards"], ["rewards", "score"], ["explain"]])
def test_help_has_examples(command, capsys, words):
    with pytest.raises(SystemExit):
        command(*words, "--help")
    assert "examples:\n  grpo-ext " in capsys.readouterr().out
