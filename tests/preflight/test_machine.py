"""What the machine has: a server that answers, room on the disk."""

from __future__ import annotations

import sys
from collections import namedtuple
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import pytest
from bad_servers import reply, routes, says, serving

from grpo_ext.preflight import machine
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings


def flat(**settings):
    return load_recipe(None, {"model_name_or_path": "m", "output_dir": "out", **settings}).flat


VLLM = {"/health": {}, "/version": {"version": "0.31.0"}, "/v1/models": {"data": [{"id": "m"}]}}


@pytest.mark.parametrize("by_url", [False, True])
def test_a_server_that_answers_is_said_so(by_url):
    with serving(routes(VLLM)) as base:
        port = int(base.rpartition(":")[2])
        place = {"vllm_server_base_url": f"{base}/"} if by_url else {"vllm_server_port": port}
        findings = Findings()
        machine.check_server(flat(use_vllm=True, vllm_mode="server", **place), findings)
    assert findings.sound and findings.figures["server"] == f"{base} answers: vLLM 0.31.0 with m"


def test_what_is_not_vllm_is_a_problem():
    for answer, words in ((says(reply(b"<html>")), "is not vLLM"), (says(b"220 ftp\x1b\r\n"), "does not speak HTTP")):
        with serving(answer) as base:
            findings = Findings()
            machine.check_server(flat(use_vllm=True, vllm_mode="server", vllm_server_base_url=base), findings)
        problem = findings.problems[0]
        assert words in problem.message and problem.message.isprintable() and problem.key == "vllm_server_base_url"


def test_no_server_is_asked_for_where_none_is_used():
    findings = Findings()
    machine.check_server(flat(use_vllm=True, vllm_mode="colocate"), findings)
    assert findings.sound and not findings.figures


def test_a_full_disk_is_a_problem(tiny_folder, tmp_path, monkeypatch):
    weights = (tiny_folder / "model.safetensors").stat().st_size
    values = {"model_name_or_path": str(tiny_folder), "output_dir": str(tmp_path / "out" / "run")}
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(0, 0, 7 * weights - 1))
    findings = Findings()
    machine.check_disk(flat(**values, save_total_limit=2), findings)
    assert "save_total_limit" in findings.problems[0].message and findings.problems[0].key == "output_dir"
    for enough in ({"save_total_limit": 1}, {"save_only_model": True}, {"save_strategy": "no"}, {"use_peft": True}):
        findings = Findings()
        machine.check_disk(flat(**values, **enough), findings)
        assert findings.sound, enough
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(0, 0, weights - 1))
    for kept, sound in (({}, True), ({"save_merged": True}, False)):
        findings = Findings()
        machine.check_disk(flat(**values, use_peft=True, **kept), findings)
        assert findings.sound == sound, kept


def test_a_tracker_that_is_not_installed_is_a_problem():
    for name, words in (("neptune", "pip install neptune"), ("tensorbord", "'tensorboard'")):
        findings = Findings()
        machine.check_reporting(flat(report_to=name), findings)
        assert words in findings.problems[0].message
    findings = Findings()
    machine.check_reporting(flat(report_to="none"), findings)
    assert findings.sound


@pytest.mark.parametrize(
    "free, said", [(-1, "1 B more"), (-(2**20), "1 MiB more"), (-(2**11), "2 KiB more")]
)  # what is free, less what is needed
def test_what_is_missing_on_a_disk_is_said_in_figures_that_differ(tiny_folder, tmp_path, monkeypatch, free, said):
    values = {"model_name_or_path": str(tiny_folder), "output_dir": str(tmp_path), "save_total_limit": 2}
    needed = machine.least_on_disk(flat(**values))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(0, 0, needed + free))
    findings = Findings()
    machine.check_disk(flat(**values), findings)
    message = findings.problems[0].message
    assert (said in message and "0.0 GiB" not in message and "KiB free" in message) or "MiB free" in message


PACKAGES = [
    ("attn_implementation", "flash_attention_2", "flash_attn"),
    ("deepspeed", "zero.json", "deepspeed"),
    ("accelerate_config", "zero3", "deepspeed"),
    ("optim", "paged_adamw_8bit", "bitsandbytes"),
    ("optim", "adamw_torch_8bit", "torchao"),
    ("use_liger_kernel", True, "liger_kernel"),
]


@pytest.mark.parametrize("key, value, package", PACKAGES)
def test_a_package_that_is_not_installed_is_a_problem(key, value, package):
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    findings = Findings()
    machine.check_machine(flat(**{key: value}), findings)
    assert [p.key for p in findings.problems if f"needs the package {package}" in p.message] == [key]


def test_wandb_without_a_login_is_a_problem(tmp_path, monkeypatch):
    package = ModuleType("wandb")  # as transformers looks for it
    package.run, package.__spec__ = None, ModuleSpec("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", package)
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    def sound(report_to="wandb"):
        findings = Findings()
        machine.check_reporting(flat(report_to=report_to), findings)
        return findings.sound

    assert not sound() and not sound("all") and sound("none")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    assert sound()
    (tmp_path / "netrc").write_text("what is this\n")
    assert not sound()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert sound()
