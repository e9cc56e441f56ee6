"""Settings for a recipe's vLLM engine: dtype, cache size, and the command for a server."""

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from grpo_ext.recipe.memory import BYTES
from grpo_ext.recipe.rules import Values
from grpo_ext.recipe.vllm_options import LORA_RANKS, vllm_rank
from grpo_ext.vllm.kept_tokens import server_flags
from grpo_ext.vllm.signature import KEY

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MIB = 2**20
BLOCK = 128  # tokens in a block of vLLM's CPU cache
# head sizes of CPUAttentionBackend in vLLM 0.31 to 0.33
HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
MAX_SEQUENCES = 256  # maximum number of sequences that a vLLM server runs at once
# vLLM's defaults; the command omits flags with these values
VLLM_DEFAULTS = {"revision": "main", "tensor-parallel-size": 1, "model-impl": "vllm"}


def vllm_dtype(weights: str, bf16: bool, fp16: bool) -> str:
    """Return the dtype that the trainer computes in, which its engine must also use.

    By default, vLLM would run a float32 checkpoint in bfloat16.

    Args:
        weights: dtype of the weights: float32, bfloat16 or float16.
        bf16: whether the trainer casts float32 weights to bfloat16.
        fp16: whether the trainer casts float32 weights to float16.
    """
    if weights != "float32":
        return weights
    if fp16:
        return "float16"
    return "bfloat16" if bf16 else "float32"


@dataclass(frozen=True)
class TextModel:
    """The model dimensions that the settings for an engine depend on."""

    num_hidden_layers: int
    kv_heads: int  # number of key and value heads
    head_size: int  # dimension of each head
    longest: int  # maximum length of a sequence, in tokens
    dtype: str  # dtype of the weights, according to the config

    @classmethod
    def of(cls, config: "PretrainedConfig") -> Self:
        """Create the dimensions from a transformers config.

        If the config has no maximum length, 4,096 tokens are assumed. If the config has no dtype,
        float32 is assumed.
        """
        text = config.get_text_config()
        num_heads = text.num_attention_heads
        return cls(
            num_hidden_layers=text.num_hidden_layers,
            kv_heads=getattr(text, "num_key_value_heads", None) or num_heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
            longest=getattr(text, "max_position_embeddings", None) or 4096,
            dtype=str(config.dtype or "float32").removeprefix("torch."),
        )

    def cache_bytes(self, dtype: str, sequences: int, tokens: int) -> int:
        """Return the size of the KV cache for a number of sequences, in bytes.

        The size is at least 64 MiB, and at most 4 GiB unless a single sequence needs more. vLLM
        queues sequences that do not fit.

        Args:
            dtype: dtype of the cache.
            sequences: number of sequences that may run at once.
            tokens: number of tokens per sequence.
        """
        numbers_per_token = 2 * self.num_hidden_layers * self.kv_heads * self.head_size
        num_blocks = math.ceil(tokens / BLOCK) + 1
        sequence_bytes = num_blocks * BLOCK * numbers_per_token * BYTES[dtype]
        all_bytes = max(sequence_bytes * sequences, 64 * MIB)
        limited_bytes = min(all_bytes, 4096 * MIB)
        return max(sequence_bytes, limited_bytes)


def cpu_settings(
    model: TextModel,
    dtype: str,
    sequences: int,
    tokens: int | None,
) -> dict[str, Any]:
    """Return arguments for `vllm.LLM` on a CPU: dtype, eager mode (to start fast) and cache size.

    Args:
        model: the model's dimensions.
        dtype: dtype of the weights and the cache.
        sequences: number of sequences that may run at once.
        tokens: maximum length of a sequence; if `None`, the model's maximum.

    Raises:
        ValueError: if vLLM has no CPU kernel for the size of the attention heads.
    """
    if model.head_size not in HEAD_SIZES:
        raise ValueError(
            f"vLLM on a CPU supports attention heads of size {', '.join(map(str, HEAD_SIZES))}, "
            f"but those of this model have size {model.head_size}. Set `use_vllm: false`."
        )
    room = model.cache_bytes(dtype, sequences, tokens or model.longest)
    return {"dtype": dtype, "enforce_eager": True, "kv_cache_memory_bytes": room}


def adapter_settings(r: int) -> dict[str, Any]:
    """Return arguments for `vllm.LLM` with an adapter of LoRA rank `r`.

    The maximum rank among them is the smallest one that vLLM supports and that is at least `r`.

    Raises:
        ValueError: if vLLM does not support a rank this large.
    """
    rank = vllm_rank(r)
    if rank is None:
        raise ValueError(
            f"vLLM supports LoRA ranks up to {LORA_RANKS[-1]}, not {r}. Lower lora_r, or set "
            "`vllm_sync_adapter: merged`."
        )
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}


def server_url(v: Mapping[str, Any]) -> str:
    """Return the vLLM server's URL for a recipe with the values `v`, without a trailing slash.

    The URL is `vllm_server_base_url` or, if that is not set, is built from `vllm_server_host` and
    `vllm_server_port`.
    """
    url = v["vllm_server_base_url"]
    if not url:
        url = f"http://{v['vllm_server_host']}:{v['vllm_server_port']}"
    return url.rstrip("/")


def server_command(v: Values, model: TextModel | None, completions: int) -> list[str]:
    """Return the command that starts a recipe's vLLM server, as a list of arguments.

    Args:
        v: the recipe's values.
        model: the model's dimensions if the server runs on a CPU; `None` if it runs on GPUs.
        completions: number of completions per generation.

    Raises:
        ValueError: if vLLM has no CPU kernel for the size of the attention heads, or does not
            support the LoRA rank.
    """
    address = urlsplit(server_url(v))
    flags: dict[str, Any] = {
        "model": v["model_name_or_path"],
        "revision": v["model_revision"],
        "host": address.hostname,
        "port": address.port or 80,
        "max-model-len": v["vllm_max_model_length"],
        "tensor-parallel-size": v["vllm_tensor_parallel_size"],
        "model-impl": v["vllm_model_impl"],
        "trust-remote-code": v["trust_remote_code"],
        "seed": v["seed"],
        # log-probs of the sampling distribution, for importance ratios
        "logprobs-mode": "processed_logprobs",
        "max-logprobs": -1,
        "middleware": "grpo_ext.vllm.guard.Guard" if os.environ.get(KEY) else None,
    }
    if v["use_peft"] and v["vllm_sync_adapter"] == "adapter":
        flags |= adapter_settings(v["lora_r"])
    else:
        backend = "gloo" if model else "nccl"
        flags["weight-transfer-config"] = json.dumps({"backend": backend})
    weights_dtype = str(v["dtype"] or "auto").removeprefix("torch.")
    if model is not None and weights_dtype == "auto":
        weights_dtype = model.dtype
    fp16 = v["fp16"] and model is None  # accelerate has no autocast to float16 on a CPU
    bf16 = v["bf16"] is not False and not v["fp16"]
    dtype = vllm_dtype(weights_dtype, bf16, fp16)
    if model is None:
        flags["dtype"] = dtype
        flags |= server_flags(v)
    else:
        sequences = min(completions, MAX_SEQUENCES)
        flags |= cpu_settings(model, dtype, sequences, v["vllm_max_model_length"])
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in flags.items():
        if value is None or value is False or value == VLLM_DEFAULTS.get(name):
            continue
        command.append(f"--{name.replace('_', '-')}")
        if value is not True:
            command.append(str(value))
    return command
