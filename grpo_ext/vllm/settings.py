"""Settings of vLLM engines by a recipe: number type, size of the cache, command of a server."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from grpo_ext.recipe.memory import BYTES
from grpo_ext.recipe.rules import Values
from grpo_ext.recipe.vllm_options import vllm_rank
from grpo_ext.vllm.signature import KEY

MIB = 2**20
BLOCK = 128  # tokens in a block of vLLM's CPU cache
HEAD_SIZES = (
    32,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    512,
)  # of CPUAttentionBackend in vLLM 0.31
MOST_SEQUENCES = 256  # sequences that a vLLM server runs at once


def vllm_dtype(weights: str, bf16: bool, fp16: bool) -> str:
    """Return the type that the trainer computes in, which its engine must also use.

    Weights are float32, bfloat16 or float16; with `bf16` or `fp16` the trainer casts them. By
    default vLLM would run a float32 checkpoint in bfloat16.
    """
    if weights == "float32" and (bf16 or fp16):
        return "float16" if fp16 else "bfloat16"
    return weights


@dataclass(frozen=True)
class TextModel:
    """The sizes of a model that the settings of an engine need."""

    num_hidden_layers: int
    kv_heads: int
    head_size: int  # numbers in each head
    longest: int  # most tokens of a sequence
    dtype: str  # of its weights, by its config

    @classmethod
    def of(cls, config: Any) -> Self:
        """Return the sizes in a transformers config."""
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        dtype = str(config.dtype or "float32").removeprefix("torch.")
        longest = getattr(text, "max_position_embeddings", 4096)
        return cls(text.num_hidden_layers, heads, head, longest, dtype)

    def cache_bytes(self, dtype: str, sequences: int, tokens: int) -> int:
        """Return the size of the cache for these sequences, in whole blocks: 64 MiB to 4 GiB.

        It is never too small for one sequence; vLLM lets other sequences wait.
        """
        blocks = -(-tokens // BLOCK) + 1
        one = (
            blocks
            * BLOCK
            * 2
            * self.num_hidden_layers
            * self.kv_heads
            * self.head_size
            * BYTES[dtype]
        )
        return max(one, min(max(one * sequences, 64 * MIB), 4096 * MIB))


def cpu_settings(
    model: TextModel, dtype: str, sequences: int, tokens: int | None
) -> dict[str, Any]:
    """Return arguments of `vllm.LLM` for a CPU: no compilation (fast start), and the cache size.

    `ValueError` if vLLM has no CPU kernel for the size of the attention heads.
    """
    if model.head_size not in HEAD_SIZES:
        raise ValueError(
            f"vLLM on a CPU runs attention heads of {', '.join(map(str, HEAD_SIZES))} numbers, "
            f"and this model's have {model.head_size}: set use_vllm: false."
        )
    room = model.cache_bytes(dtype, sequences, tokens or model.longest)
    return {"dtype": dtype, "enforce_eager": True, "kv_cache_memory_bytes": room}


def adapter_settings(r: int) -> dict[str, Any]:
    """Return arguments of `vllm.LLM` for an adapter of rank `r`; `ValueError` for a large rank."""
    rank = vllm_rank(r)
    if rank is None:
        raise ValueError(f"vLLM takes no adapter of rank {r}: write vllm_sync_adapter: merged.")
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}


def server_url(v: Mapping[str, Any]) -> str:
    """Return the address of the recipe's server, without a slash at the end."""
    return (
        v["vllm_server_base_url"] or f"http://{v['vllm_server_host']}:{v['vllm_server_port']}"
    ).rstrip("/")


def server_words(v: Values, model: TextModel | None, completions: int) -> list[str]:
    """Return the command that starts the server of a recipe for generations of so many completions.

    `model` is the recipe's model if the server runs on a CPU, and `None` on GPUs.
    """
    place = urlsplit(server_url(v))
    flags: dict[str, Any] = {
        "model": v["model_name_or_path"],
        "revision": v["model_revision"] if v["model_revision"] != "main" else None,
        "host": place.hostname,
        "port": place.port or 80,
        "max-model-len": v["vllm_max_model_length"],
        "tensor-parallel-size": v["vllm_tensor_parallel_size"]
        if v["vllm_tensor_parallel_size"] != 1
        else None,
        "model-impl": v["vllm_model_impl"] if v["vllm_model_impl"] != "vllm" else None,
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
        flags["weight-transfer-config"] = json.dumps({"backend": "gloo" if model else "nccl"})
    loaded = str(v["dtype"] or "auto").removeprefix("torch.")
    dtype = vllm_dtype(
        model.dtype if model and loaded == "auto" else loaded, v["bf16"] is not False, v["fp16"]
    )
    if model is None:
        flags["dtype"] = dtype
    else:
        flags |= cpu_settings(
            model, dtype, min(completions, MOST_SEQUENCES), v["vllm_max_model_length"]
        )
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in flags.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words
