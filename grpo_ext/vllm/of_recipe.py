"""The server that a recipe needs."""

import ipaddress
import logging
import os
from pathlib import Path
from urllib.parse import urlsplit

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.vllm.http import KEY
from grpo_ext.vllm.server import LOG, Server
from grpo_ext.vllm.settings import TextModel, server_url, server_words

logger = logging.getLogger(__name__)


def server_of(recipe: Recipe, num_processes: int = 1, here: bool = False) -> Server:
    """The server of a recipe, not started, for trainers of so many processes.

    `ValueError` if the recipe uses none, its model cannot be served on this CPU, or others could reach it without a key;
    `OSError` if the config of a model to be served on a CPU cannot be read, which `here` looks for on this machine alone.
    """
    v = recipe.flat
    if not v["use_vllm"] or v["vllm_mode"] != "server":
        raise ValueError("this recipe uses no vLLM server: write use_vllm: true and vllm_mode: server.")
    check_reach(server_url(v))
    model = None
    if v["use_cpu"] or not gpu_is_there():
        from transformers import AutoConfig

        name, trust = v["model_name_or_path"], bool(v["trust_remote_code"])
        how = {"revision": v["model_revision"], "trust_remote_code": trust, "local_files_only": here}
        try:
            model = TextModel.of(AutoConfig.from_pretrained(name, **how))
        except OSError:
            if not here:
                raise
            raise OSError(
                f"the config of {name}, which says how large the server's cache must be, is not on this machine: "
                f"`hf download {name} config.json` fetches it."
            ) from None
    words = server_words(v, model, batch_of(v, num_processes).completions)
    log = recipe.output_dir.expanduser() / LOG
    return Server(words, server_url(v), log, None if model else v["vllm_server_devices"])


def check_reach(url: str) -> None:
    """Warn of a server that other machines reach, and refuse one without a key: it takes weights and adapters."""
    host = urlsplit(url).hostname or ""
    try:
        alone = ipaddress.ip_address(host).is_loopback
    except ValueError:
        alone = host == "localhost"
    if alone:
        return
    if not os.environ.get(KEY):
        raise ValueError(
            f"whoever reaches {host} could give the server weights and adapters, and run code with them: set {KEY} to a secret "
            "in the environment of server and trainers, or write vllm_server_host: 127.0.0.1."
        )
    logger.warning(f"The vLLM server will listen at {host}. Its key and all that it says travel there in the clear.")


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
