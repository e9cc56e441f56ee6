"""The launcher starts what was asked for."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import yaml
from transformers import Qwen2Config

import grpo_ext.run.launch
from grpo_ext.recipe.folder import accelerate_config, recipe_folder
from grpo_ext.recipe.load import load_recipe
from grpo_ext.run.allocator import allocator_environment
from grpo_ext.run.launch import KILLED, Launched, launch_command, threads_of
from grpo_ext.run.ranks import RANKS, check_ranks
from tests.support.places import REPO

CONFIGS = sorted((REPO / "recipes" / "accelerate").glob("*.yaml"))


def test_all_launchers_are_there():
    assert {p.stem for p in CONFIGS} == {
        "cpu",
        "cpu_2",
        "single_gpu",
        "ddp",
        "fsdp2",
        "zero2",
        "zero3",
        "multi_node",
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_accelerate_knows_every_key_of_every_launcher(path):
    from accelerate.commands.config.config_args import load_config_from_file

    head = path.read_text().split("compute_environment")[0]
    assert f"recipes/accelerate/{path.name}" in head
    assert (
        load_config_from_file(str(path)).num_processes >= 1
    )  # it refuses keys that it does not know


def test_one_cpu_process_uses_the_config():
    command, environment = launch_command("grpo_ext.train", ["--config", "x.yaml"], "cpu")
    assert command[1:3] == ["-m", "grpo_ext.run.accelerate_launch"]
    assert str(recipe_folder() / "accelerate" / "cpu.yaml") in command
    assert command[-4:] == ["-m", "grpo_ext.train", "--config", "x.yaml"]
    assert environment == allocator_environment()


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


def test_a_tiny_model_gets_one_thread_and_others_share_all_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(grpo_ext.run.launch, "gpu_is_there", lambda: False)
    chosen = {}
    for hidden in (64, 512):
        config = Qwen2Config(
            vocab_size=8_000, hidden_size=hidden, intermediate_size=hidden, num_hidden_layers=1
        )
        config.save_pretrained(tmp_path / str(hidden))
        words = ["--model_name_or_path", str(tmp_path / str(hidden))]
        chosen[hidden] = threads_of(load_recipe(recipe_folder() / "countdown" / "tiny.yaml", words))
    assert chosen == {64: 1, 512: None}
    command, _ = launch_command("grpo_ext.train", [], "cpu", threads=1)
    assert command[command.index("--num_cpu_threads_per_process") + 1] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_of(load_recipe(recipe_folder() / "countdown" / "tiny.yaml", [])) is None


@pytest.mark.parametrize(
    "end, code, is_told",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, True),
        ("sys.exit(report_exit(1))", 1, False),
        ("sys.exit(report_exit(0))", 0, False),
    ],
)
def test_a_rank_that_is_killed_from_outside_is_named(tmp_path, capsys, end, code, is_told):
    program = (
        "import os, signal, sys\n"
        "from grpo_ext.run.ranks import report_exit, report_ready\n"
        f"report_ready()\n{end}\n"
    )
    environment = {**os.environ, RANKS: str(tmp_path)}
    launched = Launched([sys.executable, "-c", program], environment, tmp_path)
    assert launched.wait() == code
    assert (KILLED in capsys.readouterr().err) == is_told
