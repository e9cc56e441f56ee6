"""Check this machine: packages, launcher, trackers, hub login, vLLM server, disk, processor."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from grpo_ext.common.devices import bfloat16_is_slow, gpu_is_there
from grpo_ext.common.files import data_yaml
from grpo_ext.common.suggestions import unknown
from grpo_ext.common.untrusted import first_line
from grpo_ext.recipe.folder import accelerate_config, accelerate_settings
from grpo_ext.recipe.overlap_options import needs_kept
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.http import VllmLine, who_answers
from grpo_ext.vllm.settings import server_url

SERVER_PATIENCE = 2.0  # time limit for the response of a vLLM server, in seconds
OUTPUT_DIR = "trainer_output"  # where transformers writes if `output_dir` is not set


def check_machine(v: Values, findings: Findings) -> None:
    """Check packages, launcher, trackers, hub login, disk and CPU, and note a missing GPU."""
    check_packages(v, findings)
    check_launcher(v, findings)
    check_reporting(v, findings)
    check_uploads(v, findings)
    check_disk(v, findings)
    check_processor(v, findings)
    if not v["use_cpu"] and not gpu_is_there():
        findings.note(
            "this machine has no NVIDIA GPU, so `grpo-ext train` would use the CPU, unless torch "
            "finds another accelerator.",
            "use_cpu",
        )


def check_processor(v: Values, findings: Findings) -> None:
    """Add a note if the run uses bfloat16 on an x86 CPU without AVX-512, where it is slow."""
    import torch

    if torch.accelerator.is_available() and not v["use_cpu"]:
        return
    if not bfloat16_is_slow():
        return
    for key, slow, remedy in (
        ("dtype", "bfloat16", "`dtype: float32`"),
        ("bf16", True, "`bf16: false`"),
    ):
        if v[key] == slow:
            findings.note(
                f"{key}: this processor has no AVX-512, so matrix multiplications in bfloat16 take "
                "at least ten times as long as in float32. For training on the CPU, set "
                f"{remedy}.",
                key,
            )


def check_workers(rewards: Sequence[Any], findings: Findings) -> None:
    """Add a note that the memory of reward workers is limited only on Linux.

    No note is added on Linux, if no reward runs in a worker process, or if the run will be on
    another machine.

    Args:
        rewards: the rewards of the run, wrapped in guards.
        findings: receives the note.
    """
    if findings.elsewhere or sys.platform == "linux":
        return
    in_workers = [reward.name for reward in rewards if getattr(reward, "pool", None) is not None]
    if in_workers:
        findings.note(
            "reward_workers: the memory of worker processes is not limited on this system "
            f"({sys.platform}), and processes that they start outlive a run that is killed. This "
            f"concerns the rewards {', '.join(in_workers)}. reward_timeout still limits their "
            "time.",
            "reward_workers",
        )


def check_packages(v: Values, findings: Findings) -> None:
    """Check that the packages required by the recipe's options are installed."""
    for key, pattern, packages in data_yaml("grpo_ext.preflight", "packages.yaml"):
        if not v.has(key):  # a GRPO key, which recipes for supervised training lack
            continue
        option = str(getattr(v[key], "value", v[key]))
        if re.fullmatch(pattern, option) and not any(map(find_spec, packages)):
            findings.problem(
                f"`{key}: {option}` needs the package {' or '.join(packages)}, which is not "
                "installed. Install it with pip, or change this option.",
                key,
            )


def check_launcher(v: Values, findings: Findings) -> None:
    """Check that accelerate accepts the recipe's `accelerate_config`.

    If the config uses DeepSpeed, also check that the package `deepspeed` is installed.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    config = v["accelerate_config"]
    if not config:
        return
    try:
        launcher = accelerate_settings(config).get("distributed_type")
        if launcher == "DEEPSPEED" and find_spec("deepspeed") is None:
            findings.problem(
                f"`accelerate_config: {config}` needs the package deepspeed, which is not "
                "installed. Run `pip install deepspeed`, or use a config without DeepSpeed.",
                "accelerate_config",
            )
        load_config_from_file(str(accelerate_config(config)))
    except Exception as error:  # accelerate raises many kinds of errors
        findings.problem(error, "accelerate_config")


def check_uploads(v: Values, findings: Findings) -> None:
    """Check that this machine is logged in to the hub, if the recipe uploads to it."""
    from huggingface_hub import HfApi

    for key in ("push_to_hub", "log_completions_hub_repo"):
        if not v.has(key) or not v[key]:
            continue
        try:
            HfApi().whoami(token=v["hub_token"])
        except Exception as error:  # no token, an invalid token, or no connection to the hub
            remedy = "Run `hf auth login`, or set the environment variable HF_TOKEN."
            if v["hub_token"]:
                remedy = "Correct hub_token, or remove it and run `hf auth login`."
            findings.problem(
                f"{key} needs a login to the Hugging Face Hub, which could not be confirmed "
                f"({first_line(error)}). {remedy}",
                key,
            )


def check_reporting(v: Values, findings: Findings) -> None:
    """Check that each tracker in `report_to` is known to transformers and installed."""
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    trackers = v["report_to"]
    if not isinstance(trackers, list):
        trackers = [trackers]
    installed = get_available_reporting_integrations()
    names = ["none", "all", *INTEGRATION_TO_CALLBACK]
    for tracker in trackers:
        if tracker in (None, "none", "all", *installed):
            continue
        if tracker in names:
            findings.problem(
                f"`report_to: {tracker}` needs the tracker's package, which is not installed. "
                f"Install it (often with `pip install {tracker}`), or set `report_to: none`.",
                "report_to",
            )
        else:
            findings.problem(f"report_to: {unknown('tracker', str(tracker), names)}", "report_to")


def check_server(v: Values, findings: Findings) -> None:
    """Check that the recipe's vLLM server answers and returns what the run needs.

    With some recipes, the server must return the tokens kept by top_k, top_p and min_p. The
    server's address and version are recorded as the figure "server". Nothing is checked if the
    recipe uses no vLLM server.
    """
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        return
    base = server_url(v)
    key = "vllm_server_base_url" if v["vllm_server_base_url"] else "vllm_server_port"
    line = VllmLine(SERVER_PATIENCE)
    try:
        server = who_answers(line, base)
        lacks_kept = needs_kept(v) and not returns_kept(line, base)
    except ConnectionError as error:
        findings.problem(
            f"no usable vLLM server answers at {base} ({error}). Start one with `grpo-ext serve` "
            "or `grpo-ext train --serve`, or correct its address in vllm_server_base_url or in "
            "vllm_server_host and vllm_server_port.",
            key,
        )
        return
    findings.figures["server"] = f"{base} answers: vLLM {server}"
    if lacks_kept:
        findings.problem(
            f"the vLLM server at {base} does not return the tokens that top_k, top_p and min_p "
            "keep, but this run needs them. Start the server with `grpo-ext serve` and vLLM 0.28 "
            "or later on a GPU, or remove these keys.",
            key,
        )


def returns_kept(line: VllmLine, base: str) -> bool:
    """Return whether a vLLM server returns the tokens kept by top_k, top_p and min_p.

    Args:
        line: the HTTP client for vLLM servers.
        base: the URL of the server.

    Raises:
        ConnectionError: if the server does not respond, or its response is an error or does not
            have vLLM's format.
    """
    address = f"{base}/server_info?config_format=json"
    answer = line.ask("GET", address, None, SERVER_PATIENCE)
    answer.raise_for_status()
    model_config = answer.json()["vllm_config"]["model_config"]
    return bool(model_config.get("return_sampling_mask"))


def check_disk(v: Values, findings: Findings) -> None:
    """Check that `output_dir` is writable, and record how many bytes are free on its disk.

    The number is the entry `free` of the figure "disk". If the folder does not exist yet, its
    nearest existing parent is checked.
    """
    output_dir = Path(v["output_dir"] or OUTPUT_DIR).expanduser().absolute()
    existing = output_dir
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        findings.problem(
            f"output_dir: the folder {output_dir} cannot be created, because {existing} is not a "
            "folder. Set output_dir to another path.",
            "output_dir",
        )
        return
    if not os.access(existing, os.W_OK):
        findings.problem(
            f"output_dir: the folder {output_dir} cannot be written, because you lack write "
            f"permission in {existing}. Set output_dir to another path.",
            "output_dir",
        )
        return
    findings.figures["disk"] = {"free": shutil.disk_usage(existing).free}
