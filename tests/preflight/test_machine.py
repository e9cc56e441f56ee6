"""What the machine has: a server that answers, trackers, packages."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

import pytest
import torch

from grpo_ext.preflight import machine
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.pool import RewardPool
from tests.support.bad_servers import reply, routes, says, serving


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


@pytest.mark.parametrize("returns", [True, False, None])
def test_a_server_must_return_the_kept_tokens_that_the_run_needs(returns):
    """With Qwen3's own settings, a KL and a generation under way."""
    model_config = {"dtype": "x", "logprobs_mode": "processed_logprobs", "max_model_len": 1}
    if returns is not None:
        model_config["return_sampling_mask"] = returns
    config = {"model_config": model_config, "weight_transfer_config": None, "lora_config": None}
    with serving(routes({**VLLM, "/server_info": {"vllm_config": config}})) as base:
        place = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": base}
        sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "beta": 0.04}
        findings = Findings()
        machine.check_server(flat(**place, **sampling, overlap="one_step"), findings)
        in_turn = Findings()
        machine.check_server(flat(**place, **sampling), in_turn)
    assert in_turn.sound and "answers" in findings.figures["server"]
    assert [found.key for found in findings.problems] == (
        [] if returns else ["vllm_server_base_url"]
    )


def test_what_is_not_vllm_is_a_problem():
    for answer, words in (
        (says(reply(b"<html>")), "not have vLLM's format"),
        (says(b"220 ftp\x1b\r\n"), "does not speak HTTP"),
    ):
        with serving(answer) as base:
            findings = Findings()
            machine.check_server(
                flat(use_vllm=True, vllm_mode="server", vllm_server_base_url=base), findings
            )
        problem = findings.problems[0]
        assert (
            words in problem.message
            and problem.message.isprintable()
            and problem.key == "vllm_server_base_url"
        )


def test_no_server_is_asked_for_where_none_is_used():
    findings = Findings()
    machine.check_server(flat(use_vllm=True, vllm_mode="colocate"), findings)
    assert findings.sound and not findings.figures


def test_a_tracker_that_is_not_installed_is_a_problem():
    for name, words in (("neptune", "pip install neptune"), ("tensorbord", "'tensorboard'")):
        findings = Findings()
        machine.check_reporting(flat(report_to=name), findings)
        assert words in findings.problems[0].message
    findings = Findings()
    machine.check_reporting(flat(report_to="none"), findings)
    assert findings.sound


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
    assert [p.key for p in findings.problems if f"needs the package {package}" in p.message] == [
        key
    ]


@pytest.mark.parametrize(
    "processor, capability, settings, noted",
    [
        ("x86_64", "AVX2", {"dtype": "bfloat16"}, ["dtype"]),
        ("x86_64", "DEFAULT", {"dtype": "bfloat16", "bf16": True}, ["dtype", "bf16"]),
        ("x86_64", "AVX2", {}, []),
        ("x86_64", "AVX512", {"dtype": "bfloat16"}, []),
        ("arm64", "DEFAULT", {"dtype": "bfloat16"}, []),
    ],
)
def test_bfloat16_on_a_processor_without_avx_512_is_noted(
    monkeypatch, processor, capability, settings, noted
):
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    findings = Findings()
    machine.check_processor(flat(use_cpu=True, **settings), findings)
    assert [note.key for note in findings.notes] == noted and findings.sound


@pytest.mark.parametrize("system, noted", [("linux", False), ("darwin", True)])
def test_workers_without_a_limit_of_memory_are_noted(monkeypatch, system, noted):
    with RewardPool(1) as pool:
        rewards = [Guard(build("format"), pool=pool), Guard(build("accuracy"), pool=pool)]
        monkeypatch.setattr(sys, "platform", system)
        findings = Findings()
        machine.check_workers(rewards, findings)
        machine.check_workers([Guard(build("accuracy"))], findings)
        monkeypatch.undo()
    messages = [note.message for note in findings.notes]
    concerned = "This concerns the rewards accuracy."
    assert [concerned in message for message in messages] == ([True] if noted else [])
