"""Settings that make a vLLM engine return the tokens that truncation kept.

vLLM calls them the sampling mask (`return_sampling_mask`, vllm#49577). To return it, vLLM requires
(in `VllmConfig._verify_sampling_replay_config` and `InputProcessor`) its model runner V2, which
needs Triton and therefore a GPU; `processed_logprobs`; and a top_k in each request, which bounds
the size of the sets.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

FIRST_VERSION = Version("0.28")  # the first that returns them
RUNNER_VERSION = Version("0.29")  # the first that uses model runner V2 for every model
ROUTE_VERSION = Version("0.30")  # the first that needs a flag for the route that returns them
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # vLLM's environment variable: "1" or "0"


def wants_kept(v: Mapping[str, Any]) -> bool:
    """Return True if completions are scored over kept tokens, and top_k lets vLLM return them."""
    top_k = (v["generation_kwargs"] or {}).get("top_k", v["top_k"]) or 0
    return v["logprob_policy"] == "sampling" and top_k > 0


def engine_settings(v: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` that make an engine on a GPU return the kept tokens.

    Return `{}` if these are not wanted, or if the installed vLLM cannot return them.
    """
    return {"return_sampling_mask": True} if wants_kept(v) and installed_vllm_can() else {}


def server_flags(v: Mapping[str, Any]) -> dict[str, Any]:
    """Return `engine_settings` as flags of a server's command line.

    If the installed vLLM needs a flag for the route that returns kept tokens, it is added.
    """
    flags = {name.replace("_", "-"): value for name, value in engine_settings(v).items()}
    if flags and installed_version() >= ROUTE_VERSION:
        flags["enable-scale-out"] = True
    return flags


def installed_vllm_can() -> bool:
    """Return whether the installed vLLM returns kept tokens on a GPU with the selected runner."""
    installed = installed_version()
    runner = os.environ.get(RUNNER)
    if runner is None:
        return installed >= RUNNER_VERSION
    return installed >= FIRST_VERSION and runner.strip() != "0"


def installed_version() -> Version:
    """Return the version of the installed vLLM without suffixes like `rc1`; 0 if not installed."""
    try:
        return Version(Version(version("vllm")).base_version)
    except PackageNotFoundError:
        return Version("0")
