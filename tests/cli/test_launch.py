"""The launcher starts what was asked for, and the command line answers in words."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from conftest import REPO

from grpo_ext.cli.main import SUBCOMMANDS, main, split_debug
from grpo_ext.launch import check_ranks, launch_command
from grpo_ext.recipe.folder import accelerate_config, recipe_folder

CONFIGS = sorted((REPO / "recipes" / "accelerate").glob("*.yaml"))


def test_all_launchers_are_there():
    assert {p.stem for p in CONFIGS} == {"cpu", "cpu_2", "single_gpu", "ddp", "fsdp2", "zero2", "zero3", "multi_node"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_accelerate_knows_every_key_of_every_launcher(path):
    from accelerate.commands.config.config_args import load_config_from_file

    head = path.read_text().split("compute_environment")[0]
    assert f"recipes/accelerate/{path.name}" in head
    assert load_config_from_file(str(path)).num_processes >= 1  # it refuses keys that it does not know


def test_one_cpu_process_uses_the_config():
    command, environment = launch_command("grpo_ext.train", ["--config", "x.yaml"], "cpu")
    assert command[1:3] == ["-m", "accelerate.commands.launch"]
    assert str(recipe_folder() / "accelerate" / "cpu.yaml") in command
    assert command[-4:] == ["-m", "grpo_ext.train", "--config", "x.yaml"]
    assert environment == {}


def test_several_cpu_processes_take_the_way_that_starts_them():
    command, environment = launch_command("grpo_ext.train", [], "cpu", num_processes=3)
    assert environment["ACCELERATE_USE_CPU"] == "true"
    assert "--multi_gpu" in command and "--config_file" not in command
    assert command[command.index("--num_processes") + 1] == "3"


def test_the_configs_number_of_processes_is_used():
    command, _ = launch_command("grpo_ext.train", [], "zero3")
    expected = yaml.safe_load(accelerate_config("zero3").read_text())["num_processes"]
    assert command[command.index("--num_processes") + 1] == str(expected)


def test_an_unknown_config_lists_the_known():
    with pytest.raises(FileNotFoundError, match="zero3"):
        accelerate_config("zero4")


def test_one_process_where_several_were_asked_for_is_refused(monkeypatch):
    for key, value in {
        "ACCELERATE_MIXED_PRECISION": "no",
        "ACCELERATE_USE_CPU": "True",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit, match="started only one"):
        check_ranks()
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_ranks()


def grpo_ext(*words):
    return subprocess.run(
        [sys.executable, "-m", "grpo_ext", *words], capture_output=True, text=True, cwd=REPO, timeout=120
    )


@pytest.mark.parametrize("command", [None, *SUBCOMMANDS])
def test_help_fits_one_screen_and_examples_come_first(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*([command] if command else []), "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert 0 < out.index("examples:\n  grpo-ext") < out.index("options:")
    assert len(out.splitlines()) <= 50
    assert command is not None or "exit codes: 0" in out


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_has_a_traceback_only_with_debug(where, capsys):
    words = ["explain", "countdown", "--nums", "1", "--target", "1", "--completion", "1"]
    broken = ["rewards", "show", "nonesuch"]
    assert main(broken) == 2
    assert capsys.readouterr().err.startswith("grpo-ext: No reward is named 'nonesuch'.")
    with pytest.raises(ValueError, match="nonesuch"):
        main(["--debug", *broken] if where == "before" else [*broken, "--debug"])
    assert main([*words, "--debug"]) == 0
    assert split_debug(["train", "--debug", "underflow_overflow", "--x"]) == (
        False,
        ["train", "--debug", "underflow_overflow", "--x"],
    )
    assert split_debug(["train", "--debug", "--x"]) == (True, ["train", "--x"])


def test_any_other_error_is_one_line_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr("grpo_ext.cli.rewards.run_list", lambda args: {}["missing"])
    assert main(["rewards", "list"]) == 1
    assert capsys.readouterr().err == "grpo-ext: KeyError: 'missing' (--debug shows where)\n"


def test_a_missing_recipe_is_one_sentence():
    out = grpo_ext("train", "--config", "nowhere.yaml")
    assert out.returncode == 2
    assert out.stderr.strip() == "grpo-ext: There is no recipe at nowhere.yaml."


def test_a_mistyped_key_is_named_before_a_model_is_loaded(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model_name_or_path: no/such-model\naccelerate_config: cpu\nlearning_rte: 1.0\n")
    out = grpo_ext("train", "--config", str(recipe), "--num_generation", "4")
    assert out.returncode == 2
    assert "r.yaml:3" in out.stderr and "'learning_rate'" in out.stderr
    assert "command line" in out.stderr and "'num_generations'" in out.stderr
    assert "Traceback" not in out.stderr.split("learning_rate")[0]


def test_a_mistyped_subcommand_is_refused():
    out = grpo_ext("trian")
    assert out.returncode == 2
