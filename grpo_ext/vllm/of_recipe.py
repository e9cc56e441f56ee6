"""The server that a recipe needs."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.vllm.server import LOG, Server
from grpo_ext.vllm.settings import TextModel, server_url, server_words


def server_of(recipe: Recipe, num_processes: int = 1) -> Server:
    """The server of a recipe, not started, for trainers of so many processes.

    Raises:
        ValueError: if the recipe uses none, or its model cannot be served on this CPU.
        OSError: if the config of a model that is to be served on a CPU cannot be read.
    """
    v = recipe.flat
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        raise ValueError("this recipe uses no vLLM server: write use_vllm: true and vllm_mode: server.")
    model = None
    if v["use_cpu"] or not gpu_is_there():
        from transformers import AutoConfig

        trust = bool(v["trust_remote_code"])
        name, revision = v["model_name_or_path"], v["model_revision"]
        model = TextModel.of(AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust))
    words = server_words(v, model, batch_of(v, num_processes).completions)
    log = recipe.output_dir.expanduser() / LOG
    return Server(words, server_url(v), log, None if model else v["vllm_server_devices"])


def trainer_devices(recipe: Recipe) -> dict[str, str]:
    """The environment variable that keeps the trainers off the GPUs of the server.

    `ValueError` if the recipe does not say which those are, or leaves none.
    """
    if recipe.flat["use_cpu"] or not gpu_is_there():
        return {}
    theirs = [name.strip() for name in (recipe.flat["vllm_server_devices"] or "").split(",") if name.strip()]
    mine = [name for name in visible_gpus() if name not in theirs]
    if not theirs or not mine:
        raise ValueError(
            "vllm_server_devices names the GPUs of the server, such as '1', and leaves at least one of "
            f"{','.join(visible_gpus())} to the trainers."
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)}


def visible_gpus() -> list[str]:
    """The numbers of the GPUs that a process may use here."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [path.name.removeprefix("nvidia") for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]
