"""The checks of this machine: packages, launcher, trackers, logins, the vLLM server, the disk."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.common.files import data_yaml
from grpo_ext.common.suggestions import unknown
from grpo_ext.common.untrusted import first_line
from grpo_ext.recipe.folder import accelerate_config, accelerate_settings
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.http import VllmLine, who_answers
from grpo_ext.vllm.settings import server_url

SERVER_PATIENCE = 2.0  # seconds that a vLLM server may take to answer


def check_machine(v: Values, findings: Findings) -> None:
    """Check packages, launcher, trackers, uploads and the disk; a missing GPU is a note."""
    for key, pattern, packages in data_yaml("grpo_ext.preflight", "packages.yaml"):
        if not v.has(key):  # a field of GRPO, in a recipe of supervised training
            continue
        value = str(getattr(v[key], "value", v[key]))
        if re.fullmatch(pattern, value) and not any(map(find_spec, packages)):
            findings.problem(
                f"{key}: {value} needs the package {' or '.join(packages)}, which is not "
                "installed.",
                key,
            )
    check_launcher(v, findings)
    check_reporting(v, findings)
    check_uploads(v, findings)
    check_disk(v, findings)
    if not v["use_cpu"] and not gpu_is_there():
        findings.note("there is no GPU here: `grpo-ext train` would train on the CPU.", "use_cpu")


def check_launcher(v: Values, findings: Findings) -> None:
    """Check that accelerate accepts the recipe's config, and that DeepSpeed is installed if the
    config needs it.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    key = "accelerate_config"
    if not v[key]:
        return
    try:
        if (
            accelerate_settings(v[key]).get("distributed_type") == "DEEPSPEED"
            and find_spec("deepspeed") is None
        ):
            findings.problem(
                f"{key}: {v[key]} needs the package deepspeed, which is not installed.", key
            )
        load_config_from_file(str(accelerate_config(v[key])))
    except Exception as error:  # accelerate raises many kinds
        findings.problem(error, key)


def check_uploads(v: Values, findings: Findings) -> None:
    """Check the login on the hub if the recipe uploads there."""
    from huggingface_hub import HfApi

    for key in ("push_to_hub", "log_completions_hub_repo"):
        if not v.has(key) or not v[key]:
            continue
        try:
            HfApi().whoami(token=v["hub_token"])
        except Exception as error:  # no login, a wrong one, no hub
            findings.problem(
                f"{key} needs a login on the hub, by `hf auth login` or HF_TOKEN: "
                f"{first_line(error)}",
                key,
            )


def check_reporting(v: Values, findings: Findings) -> None:
    """Check that each tool of `report_to` is known to transformers and installed."""
    from transformers.integrations import get_available_reporting_integrations
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    names = v["report_to"] if isinstance(v["report_to"], list) else [v["report_to"]]
    there = get_available_reporting_integrations()
    known = ["none", "all", *INTEGRATION_TO_CALLBACK]
    for name in names:
        if name not in (None, *known):
            findings.problem(f"report_to: {unknown('tracker', str(name), known)}", "report_to")
        elif name not in (None, "none", "all", *there):
            findings.problem(
                f"report_to: {name} is not installed: pip install {name}, or write `none`.",
                "report_to",
            )


def check_server(v: Values, findings: Findings) -> None:
    """Check that the vLLM server of the recipe answers."""
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        return
    base = server_url(v)
    key = "vllm_server_base_url" if v["vllm_server_base_url"] else "vllm_server_port"
    try:
        findings.figures["server"] = (
            f"{base} answers: vLLM {who_answers(VllmLine(SERVER_PATIENCE), base)}"
        )
    except ConnectionError as error:
        how = (
            "with `grpo-ext serve`, or with `grpo-ext train --serve`, or correct "
            "vllm_server_host and vllm_server_port."
        )
        findings.problem(f"no vLLM server answers at {base} ({error}). Start one {how}", key)


def check_disk(v: Values, findings: Findings) -> None:
    """Check that `output_dir` can be written to, and note its free space."""
    path = Path(v["output_dir"]).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        words = f"cannot be written: {there} is no folder with write permission."
        findings.problem(f"output_dir {path} {words}", "output_dir")
        return
    findings.figures["disk"] = {"free": shutil.disk_usage(there).free}
