"""What this machine has for a run: packages, the vLLM server, room on the disk, a writable folder."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.common.files import in_bytes
from grpo_ext.common.near import did_you_mean
from grpo_ext.preflight.findings import Findings
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.http import Line, who_answers
from grpo_ext.vllm.settings import server_url

SERVER_PATIENCE = 2.0  # seconds that a vLLM server may take to answer


def check_machine(v: Values, findings: Findings) -> None:
    """Packages that the recipe's options need, its launcher, and a GPU where it asks for one."""
    rounded = "load_in_4bit" if v["load_in_4bit"] else "load_in_8bit"
    for package, key in (("vllm", "use_vllm"), ("bitsandbytes", rounded), ("peft", "use_peft")):
        if v[key] and find_spec(package) is None:
            findings.problem(f"{key} needs the package {package}: pip install {package}.", key)
    if v["accelerate_config"]:
        try:
            accelerate_settings(v["accelerate_config"])
        except (OSError, ValueError) as error:
            findings.problem(error, "accelerate_config")
    check_reporting(v, findings)
    if not v["use_cpu"] and not gpu_is_there():
        findings.note("there is no GPU here: `grpo-ext train` would train on the CPU.", "use_cpu")


def check_reporting(v: Values, findings: Findings) -> None:
    """Whether each tool of `report_to` is one that transformers knows and is installed."""
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names = v["report_to"] if isinstance(v["report_to"], list) else [v["report_to"]]
    there = get_available_reporting_integrations()
    for name in names:
        if name in (None, "none", "all") or name in there:
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            known, guess = (
                ", ".join(INTEGRATION_TO_CALLBACK),
                did_you_mean(str(name), ["none", *INTEGRATION_TO_CALLBACK]),
            )
            findings.problem(f"report_to is none, all, or among {known}; got {name!r}.{guess}", "report_to")
        else:
            findings.problem(f"report_to: {name} is not installed: pip install {name}, or write `none`.", "report_to")


def check_server(v: Values, findings: Findings) -> None:
    """Whether the vLLM server of the recipe answers."""
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        return
    base = server_url(v)
    key = "vllm_server_base_url" if v["vllm_server_base_url"] else "vllm_server_port"
    try:
        findings.figures["server"] = f"{base} answers: vLLM {who_answers(Line(SERVER_PATIENCE), base)}"
    except ConnectionError as error:
        findings.problem(
            f"no vLLM server answers at {base} ({error}). Start one with `grpo-ext serve`, or with `grpo-ext train --serve`, "
            "or correct vllm_server_host and vllm_server_port.",
            key,
        )


def least_on_disk(v: Values) -> int | None:
    """Bytes that the run will at least keep: its final model, and the checkpoints of `save_total_limit` (else one).

    `None` where only an adapter is kept or the model is not in a folder here, so that its weights cannot be measured.
    """
    folder = Path(v["model_name_or_path"] or "").expanduser()
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if v["use_peft"] or not weights:
        return weights if weights and v["save_merged"] else None
    kept = 0 if str(v["save_strategy"]) == "no" else v["save_total_limit"] or 1
    return weights * (1 + kept * (1 if v["save_only_model"] else 3))  # AdamW keeps two numbers a weight


def check_disk(v: Values, findings: Findings) -> None:
    """Whether checkpoints can be written into `output_dir`, and have room there."""
    folder, needed = v["output_dir"], least_on_disk(v)
    path = Path(folder).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        findings.problem(
            f"output_dir {folder} cannot be written: {there} is no folder that you may write to.", "output_dir"
        )
        return
    free = shutil.disk_usage(there).free
    findings.figures["disk"] = {"free": free, "needed": needed}
    if needed is not None and needed > free:
        findings.problem(
            f"output_dir {folder} has {in_bytes(free)} free, and the run will keep at least {in_bytes(needed)}, "
            f"{in_bytes(needed - free)} more: write save_total_limit: 1, save_only_model: true, or another output_dir.",
            "output_dir",
        )
