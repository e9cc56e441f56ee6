"""Send vLLM only the adapter, which the engine applies to its own copy of the base model.

In each weight sync, the adapter is saved in peft's format, the engine loads it under a new name,
and the saved files are deleted. The new name prevents vLLM from using cached results of an earlier
adapter, because the prefix cache depends on the adapter's name and path.
"""

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from grpo_ext.common.http import StatusError
from grpo_ext.recipe.vllm_options import OR_MERGED
from grpo_ext.samplers.vllm_client import ServerClient
from grpo_ext.samplers.vllm_generation import OurVLLM
from grpo_ext.seams.vllm import add_adapters
from grpo_ext.vllm.http import PROBE_SECONDS
from grpo_ext.vllm.settings import adapter_settings

# Fields of a LoraConfig that vLLM supports, or that do not change the output of a trained adapter.
SUPPORTED_FIELDS = {
    "r",
    "lora_alpha",
    "use_rslora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "lora_dropout",
    "task_type",
    "inference_mode",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "peft_version",
    "init_lora_weights",
}


class AdapterVLLM(OurVLLM):
    """Like `OurVLLM`, but sends the engine only the adapter instead of all weights.

    Raises:
        ValueError: if the model has no adapter or is sharded, if vLLM does not support the adapter
            or would compute a different output than the trainer, or if the server does not accept
            the adapter's rank.
    """

    def _init_vllm(self) -> None:
        check_adapter(self.model)
        if self._dist.is_fsdp or self._dist.is_zero3:
            raise ValueError(
                "`vllm_sync_adapter: adapter` cannot gather a sharded adapter. Train without FSDP "
                f"or ZeRO-3{OR_MERGED}"
            )
        self.request: Any = None  # vLLM's LoRARequest for the adapter of the last sync
        super()._init_vllm()
        if self.mode == "colocate":
            add_adapters(self.llm, lambda: self.request)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), **adapter_settings(trained(self.model).r)}

    def _client(self) -> Callable[..., ServerClient]:
        return partial(AdapterClient, rank=trained(self.model).r)

    def _push(self) -> None:
        if self.mode == "colocate":
            with saved(self.model) as folder:
                self._load(folder)
        elif self.accelerator.is_main_process:
            self.vllm_client.load_adapter(saved(self.model, self.options.output_dir))

    def _load(self, folder: str) -> None:
        from vllm.lora.request import LoRARequest

        number = 1
        if self.request is not None:
            number = self.request.lora_int_id + 1
        self.request = LoRARequest(f"sync-{number}", number, folder)
        self.llm.llm_engine.add_lora(self.request)


class AdapterClient(ServerClient):
    """Like `ServerClient`, but for a server that loads LoRA adapters from a folder.

    Args:
        args: the positional arguments of `ServerClient`.
        rank: the LoRA rank of the adapters.
        kwargs: the keyword arguments of `ServerClient`.
    """

    def __init__(self, *args: Any, rank: int, **kwargs: Any):
        self._rank = rank
        super().__init__(*args, **kwargs)

    def init_communicator(self, device: torch.device | str | int = 0) -> None:
        """Check that the server accepts the adapters, without joining a process group.

        Args:
            device: the trainer's device, which is used if the client reconnects.

        Raises:
            ValueError: if the server accepts no LoRA adapters, or only adapters of a lower rank.
            ConnectionError: if a request fails.
            RuntimeError: if the server does not expose vLLM's development endpoints.
        """
        self._device = device
        config = self.get_server_info()["lora_config"]
        # an existing route returns status 405, because it accepts only POST
        path = self.session.get(f"{self.base_url}/v1/load_lora_adapter")
        if config is None or config["max_lora_rank"] < self._rank or path.status_code == 404:
            rank = adapter_settings(self._rank)["max_lora_rank"]
            raise ValueError(
                f"The vLLM server at {self.base_url} does not accept LoRA rank {self._rank}. "
                "Start the server with `grpo-ext serve`, or with --enable-lora --max-lora-rank "
                f"{rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment{OR_MERGED}"
            )

    def load_adapter(self, writing: AbstractContextManager[str]) -> None:
        """Make the server load the adapter and use it for all later requests.

        The server's previous adapter, if any, is unloaded. A failure is stored in `failure` and not
        raised.

        Args:
            writing: a context manager that saves the adapter and yields its folder.
        """
        self._await_dropped()  # its adapter must not be unloaded before
        self._attempt(lambda: self._load(writing))

    def _load(self, writing: AbstractContextManager[str]) -> None:
        name = uuid.uuid4().hex
        former = self.version
        with writing as folder:
            self._tell("load_lora_adapter", lora_name=name, lora_path=folder)
        self.model = self.version = name  # requests name the model to use
        if former is not None:
            self._tell("unload_lora_adapter", lora_name=former)

    def _tell(self, route: str, **body: str) -> None:
        # on success the response is not JSON
        answer = self.session.post(f"{self.base_url}/v1/{route}", json=body)
        if answer.status_code == 404 and "lora_path" in body:
            raise StatusError(
                404,
                f"the server cannot find {body['lora_path']}. Make output_dir available to the "
                f"server at the same path{OR_MERGED}",
            )
        answer.raise_for_status()

    def _check_weights(self, version: str | None, seconds: float = PROBE_SECONDS) -> None:
        if version is None:
            return
        answer = self._line.ask("GET", f"{self.base_url}/v1/models", None, seconds)
        names = [model["id"] for model in answer.json()["data"]]
        if version not in names:
            raise ConnectionError("the server was restarted, or has lost the adapter")


def trained(model: PeftModel) -> LoraConfig:
    """Return the config of the adapter that is being trained."""
    return cast(LoraConfig, model.peft_config[model.active_adapter])


def check_adapter(model: torch.nn.Module) -> None:
    """Check that a model has a LoRA adapter, and that vLLM can apply it as the trainer does.

    Raises:
        ValueError: if the model has no LoRA adapter, or if vLLM does not support the adapter or
            would compute a different output than the trainer.
    """
    if not isinstance(model, PeftModel):
        raise ValueError(
            "`vllm_sync_adapter: adapter` needs an adapter, but the model has none. Pass a "
            "peft_config to the trainer."
        )
    config = trained(model)
    if type(config) is not LoraConfig:
        raise ValueError(
            f"vLLM supports LoRA, but not {type(config).__name__}. Use LoRA{OR_MERGED}"
        )
    adapter_settings(config.r)
    default = LoraConfig()
    changed = []
    for name in sorted({field.name for field in fields(config)} - SUPPORTED_FIELDS):
        if getattr(config, name) != getattr(default, name):
            changed.append(name)
    if config.init_lora_weights not in (True, False, "gaussian"):  # others change the base
        changed.append("init_lora_weights")
    if changed:
        raise ValueError(
            "`vllm_sync_adapter: adapter` does not support these options of LoraConfig: "
            f"{', '.join(changed)}. Remove them{OR_MERGED}"
        )
    if getattr(model.config, "quantization_config", None):
        raise ValueError(
            "vLLM may quantize the base model differently from the trainer. Load the model without "
            f"quantization{OR_MERGED}"
        )
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if isinstance(layer, BaseTunerLayer):
            raise ValueError(
                "`vllm_sync_adapter: adapter` does not support adapters on the embeddings or the "
                "output head, because vLLM supports those only for some models. Remove these "
                f"modules from target_modules{OR_MERGED}"
            )


@contextmanager
def saved(model: PeftModel, parent: Path | str | None = None) -> Iterator[str]:
    """Context manager that saves the adapter in a temporary folder and yields the path to load.

    The folder is deleted on exit. It is created in `parent`, or in the system's temporary folder if
    `parent` is `None`. If `parent` does not exist, it is created, too. The path is absolute.
    """
    if parent is not None:
        parent = Path(parent).absolute()
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vllm-adapter-", dir=parent) as folder:
        name = model.active_adapter
        model.save_pretrained(folder, selected_adapters=[name], save_embedding_layers=False)
        yield folder if name == "default" else str(Path(folder, name))
