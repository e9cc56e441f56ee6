"""The checks of this machine: packages, launcher, trackers, logins, the vLLM server, the disk."""

import os
import re
import shutil
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.common.files import data_yaml, in_bytes
from grpo_ext.common.near import unknown
from grpo_ext.recipe.folder import accelerate_config, accelerate_settings
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.http import VllmLine, who_answers
from grpo_ext.vllm.settings import server_url

SERVER_PATIENCE = 2.0  # seconds that a vLLM server may take to answer


def check_machine(v: Values, findings: Findings) -> None:
    """Check packages, launcher, attention, trackers, uploads and the disk; a missing GPU is a note."""
    for key, pattern, packages in data_yaml("grpo_ext.preflight", "packages.yaml"):
        value = str(getattr(v[key], "value", v[key]))
        if re.fullmatch(pattern, value) and not any(map(find_spec, packages)):
            findings.problem(f"{key}: {value} needs the package {' or '.join(packages)}, which is not installed.", key)
    check_launcher(v, findings)
    check_attention(v, findings)
    check_reporting(v, findings)
    check_uploads(v, findings)
    check_disk(v, findings)
    if not v["use_cpu"] and not gpu_is_there():
        findings.note("there is no GPU here: `grpo-ext train` would train on the CPU.", "use_cpu")


def check_launcher(v: Values, findings: Findings) -> None:
    """Check that accelerate accepts the recipe's config, and that DeepSpeed is installed if the config needs it."""
    from accelerate.commands.config.config_args import load_config_from_file

    key = "accelerate_config"
    if not v[key]:
        return
    try:
        if accelerate_settings(v[key]).get("distributed_type") == "DEEPSPEED" and find_spec("deepspeed") is None:
            findings.problem(f"{key}: {v[key]} needs the package deepspeed, which is not installed.", key)
        load_config_from_file(str(accelerate_config(v[key])))
    except Exception as error:  # accelerate raises many kinds
        findings.problem(error, key)


def check_attention(v: Values, findings: Findings) -> None:
    """Check that transformers knows the attention, and that this machine can compute it and hold the cache."""
    from transformers import AttentionInterface

    key, name, cache = "attn_implementation", v["attn_implementation"], "cache_implementation"
    cpu = v["use_cpu"] or not gpu_is_there()
    known = ["eager", *AttentionInterface().valid_keys()]
    if name and "/" not in name and name not in known:
        findings.problem(f"{key}: {unknown('attention', name, known)}", key)
    elif name and "flash" in name and cpu:
        findings.problem(f"{key}: {name} computes on a GPU: write sdpa.", key)
    if cpu and (v[cache] or "").startswith("offloaded"):
        findings.problem(f"{cache}: {v[cache]} moves the cache between a GPU and the CPU: write dynamic.", cache)


def check_uploads(v: Values, findings: Findings) -> None:
    """Check the login on the hub if the recipe uploads there."""
    from huggingface_hub import HfApi

    for key in (key for key in ("push_to_hub", "log_completions_hub_repo") if v[key]):
        try:
            HfApi().whoami(token=v["hub_token"])
        except Exception as error:  # no login, a wrong one, no hub
            reason = str(error).partition("\n")[0]
            findings.problem(f"{key} needs a login on the hub, by `hf auth login` or HF_TOKEN: {reason}", key)


def check_reporting(v: Values, findings: Findings) -> None:
    """Check that each tool of `report_to` is known to transformers and installed, and that wandb has a login."""
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names = v["report_to"] if isinstance(v["report_to"], list) else [v["report_to"]]
    there, known = get_available_reporting_integrations(), ["none", "all", *INTEGRATION_TO_CALLBACK]
    for name in names:
        if name not in (None, *known):
            findings.problem(f"report_to: {unknown('tracker', str(name), known)}", "report_to")
        elif name not in (None, "none", "all", *there):
            findings.problem(f"report_to: {name} is not installed: pip install {name}, or write `none`.", "report_to")
    if "wandb" in there and {"wandb", "all"} & set(names) and not wandb_login():
        words = "wandb has no login here: `wandb login`, WANDB_API_KEY, or WANDB_MODE=offline."
        findings.problem(f"report_to: {words}", "report_to")


def wandb_login() -> bool:
    """Whether wandb will find a key, or needs none."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE", "online") in ("offline", "disabled", "dryrun"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False


def check_server(v: Values, findings: Findings) -> None:
    """Check that the vLLM server of the recipe answers."""
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        return
    base = server_url(v)
    key = "vllm_server_base_url" if v["vllm_server_base_url"] else "vllm_server_port"
    try:
        findings.figures["server"] = f"{base} answers: vLLM {who_answers(VllmLine(SERVER_PATIENCE), base)}"
    except ConnectionError as error:
        how = "with `grpo-ext serve`, or with `grpo-ext train --serve`, or correct vllm_server_host and vllm_server_port."
        findings.problem(f"no vLLM server answers at {base} ({error}). Start one {how}", key)


def least_on_disk(v: Values) -> int | None:
    """Return the least bytes that the run keeps: its final model, and `save_total_limit` checkpoints (by default one).

    `None` if the run keeps only an adapter, or the model is not in a folder here.
    """
    folder = Path(v["model_name_or_path"] or "").expanduser()
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if v["use_peft"] or not weights:
        return weights if weights and v["save_merged"] else None
    kept = 0 if str(v["save_strategy"]) == "no" else v["save_total_limit"] or 1
    return weights * (1 + kept * (1 if v["save_only_model"] else 3))  # AdamW keeps two numbers a weight


def check_disk(v: Values, findings: Findings) -> None:
    """Check that `output_dir` can be written to and has room for the checkpoints."""
    folder, needed = v["output_dir"], least_on_disk(v)
    path = Path(folder).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        words = f"cannot be written: {there} is no folder with write permission."
        findings.problem(f"output_dir {folder} {words}", "output_dir")
        return
    free = shutil.disk_usage(there).free
    findings.figures["disk"] = {"free": free, "needed": needed}
    if needed is not None and needed > free:
        room = f"has {in_bytes(free)} free, and the run will keep at least {in_bytes(needed)}, {in_bytes(needed - free)} more"
        how = "write save_total_limit: 1, save_only_model: true, or another output_dir."
        findings.problem(f"output_dir {folder} {room}: {how}", "output_dir")
