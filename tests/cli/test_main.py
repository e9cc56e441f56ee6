"""The command line answers in words."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from grpo_ext.cli.main import SUBCOMMANDS, main
from tests.support.forked import LIMIT, Forked
from tests.support.places import REPO


def grpo_ext(*words):
    """The exit code and what is printed, also by other means than `print`."""
    process = Forked(main, list(words))
    return process.wait(), process.printed


@pytest.mark.parametrize("command", [None, *SUBCOMMANDS])
def test_help_fits_one_screen_and_examples_come_first(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*([command] if command else []), "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert 0 < out.index("examples:\n  grpo-ext") < out.index("options:")
    assert len(out.splitlines()) <= 50
    assert command is not None or "exit codes: 0" in out


def test_an_error_has_a_traceback_only_with_debug(capsys):
    broken = ["rewards", "show", "nonesuch"]
    assert main(broken) == 2
    assert capsys.readouterr().err.startswith("grpo-ext: No reward is named 'nonesuch'.")
    with pytest.raises(ValueError, match="nonesuch"):
        main(["--debug", *broken])


def test_any_other_error_is_one_line_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr("grpo_ext.cli.rewards.run_list", lambda args: {}["missing"])
    assert main(["rewards", "list"]) == 1
    assert (
        capsys.readouterr().err
        == "grpo-ext: KeyError: 'missing' (`grpo-ext --debug` shows where)\n"
    )


@pytest.mark.parametrize(
    ("command", "option", "value", "wanted"),
    [
        ("plan", "--num_processes", "0", "a whole number of at least 1"),
        ("plan", "--rows", "-5", "a whole number of at least 1"),
        ("demo", "--max_steps", "0", "a whole number of at least 1"),
        ("eval", "--num_samples", "-1", "a whole number of at least 0"),
        ("bench", "--minutes", "0", "a finite number of minutes above 0"),
        ("bench", "--minutes", "x", "a finite number of minutes above 0"),
    ],
)
def test_numbers_out_of_range_say_what_to_write(command, option, value, wanted, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, option, value])
    assert stop.value.code == 2
    assert f"argument {option}: must be {wanted}; got '{value}'" in capsys.readouterr().err


def test_a_missing_recipe_is_one_sentence():
    code, printed = grpo_ext("train", "--config", "nowhere.yaml")
    assert code == 2
    assert (
        printed.startswith("grpo-ext: There is no recipe at nowhere.yaml.")
        and "grpo-ext recipes" in printed
    )
    assert len(printed.strip().splitlines()) == 1


def test_a_mistyped_key_is_named_before_a_model_is_loaded(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model_name_or_path: no/such-model\naccelerate_config: cpu\nlearning_rte: 1.0\n"
    )
    code, printed = grpo_ext("train", "--config", str(recipe), "--num_generation", "4")
    assert code == 2
    assert "r.yaml:3" in printed and "'learning_rate'" in printed
    assert "command line" in printed and "'num_generations'" in printed
    assert "Traceback" not in printed.split("learning_rate")[0]


def test_a_mistyped_subcommand_is_refused():
    done = subprocess.run([sys.executable, "-m", "grpo_ext", "trian"], cwd=REPO, timeout=LIMIT)
    assert done.returncode == 2


def test_a_reader_that_ends_early_ends_the_command_without_a_message():
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_ext", "rewards", "list"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    _, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (141, "")
