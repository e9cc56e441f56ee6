"""Settings that make a vLLM engine return the tokens that truncated sampling kept.

vLLM calls these tokens the sampling mask (`return_sampling_mask`, vllm#49577). To return them, vLLM
requires (in `VllmConfig._verify_sampling_replay_config` and `InputProcessor`) model runner V2,
which needs Triton and therefore a GPU; `processed_logprobs`; and a top_k in each request, which
bounds the number of kept tokens.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.version import Version

FIRST_VERSION = Version("0.28")  # the first vLLM that returns kept tokens
RUNNER_VERSION = Version("0.29")  # the first that uses model runner V2 for every model
ROUTE_VERSION = Version("0.30")  # the first that needs a flag for the route with kept tokens
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"  # vLLM's environment variable: "1" or "0"


def wants_kept(v: Mapping[str, Any]) -> bool:
    """Return whether a recipe needs kept tokens for scoring and sets a top_k above 0.

    Without top_k, vLLM cannot return kept tokens. `v` holds the values of the recipe.
    """
    top_k = (v["generation_kwargs"] or {}).get("top_k", v["top_k"]) or 0
    return v["logprob_policy"] == "sampling" and top_k > 0


def engine_settings(v: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `vllm.LLM` that make an engine on a GPU return kept tokens.

    The result is empty if `wants_kept` is `False` for the recipe with the values `v`, or if the
    installed vLLM cannot return kept tokens.
    """
    return {"return_sampling_mask": True} if wants_kept(v) and installed_vllm_can() else {}


def server_flags(v: Mapping[str, Any]) -> dict[str, Any]:
    """Return the command-line flags with which a vLLM server on a GPU returns kept tokens.

    The keys are the names of the flags, without leading dashes. In addition to the settings of
    `engine_settings`, there is a flag for the route that returns kept tokens, if the installed vLLM
    has such a flag. If `engine_settings` returns no settings, there are no flags.
    """
    flags = {name.replace("_", "-"): value for name, value in engine_settings(v).items()}
    if flags and installed_version() >= ROUTE_VERSION:
        flags["enable-scale-out"] = True
    return flags


def installed_vllm_can() -> bool:
    """Return whether the installed vLLM can return kept tokens on a GPU.

    The result depends on vLLM's version and on the environment variable named by `RUNNER`, if that
    variable is set.
    """
    installed = installed_version()
    runner = os.environ.get(RUNNER)
    if runner is None:
        return installed >= RUNNER_VERSION
    return installed >= FIRST_VERSION and runner.strip() != "0"


def installed_version() -> Version:
    """Return the version of the installed vLLM without suffixes such as `rc1`.

    Return version 0 if vLLM is not installed.
    """
    try:
        return Version(Version(version("vllm")).base_version)
    except PackageNotFoundError:
        return Version("0")
