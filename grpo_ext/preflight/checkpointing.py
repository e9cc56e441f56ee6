"""Decide whether a run needs gradient checkpointing, from an estimate of its memory."""

from dataclasses import dataclass
from typing import Self

from grpo_ext.common.devices import device_bytes
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.memory import ModelSize, memory_estimate
from grpo_ext.recipe.typed_values import Values

# The share of the memory that the estimate may fill without gradient checkpointing. It is low
# because the estimate leaves out temporary tensors and fragmentation.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Checkpointing:
    """A decision on whether to recompute activations in the backward pass, with its reason."""

    on: bool
    reason: str

    @classmethod
    def choose(
        cls,
        size: ModelSize,
        v: Values,
        batch: Batch,
        *,
        sharding: int,
        prompt: int | None,
        memory: int | None = None,
    ) -> Self:
        """Choose gradient checkpointing if the run needs more than half of the memory without it.

        Gradient checkpointing is always off with `deterministic: true`. Otherwise, it is always on
        if the model is sharded, if the loss is normalized as in TRL
        (`loss_normalization: micro_batch`), or if the length of prompts or completions is unknown.
        With a vLLM engine on the same device, the limit is half of the memory that the engine
        leaves.

        Args:
            size: the dimensions of the model.
            v: the values of the recipe.
            batch: the recipe's batch sizes.
            sharding: the ZeRO stage, or 4 for FSDP; 0 if the model is not sharded.
            prompt: the number of tokens in a prompt; `None` if it is unknown.
            memory: the memory of one process, in bytes. If `None`, use the memory of this machine's
                GPU or, with `use_cpu`, an equal share of its RAM for each process.
        """
        if v.deterministic:
            return cls(False, "as `deterministic: true` requires")
        if sharding:
            return cls(True, "the model is sharded")
        if v.loss_normalization == "micro_batch":
            return cls(True, "TRL's default")
        if prompt is None or v.max_completion_length is None:
            return cls(True, "TRL's default, because the lengths are unknown")
        values = v.replaced(gradient_checkpointing=False)
        needed = memory_estimate(size, values, batch, prompt=prompt)["total"]
        if memory is None:
            memory = device_bytes(v.use_cpu)
            if v.use_cpu:
                memory //= batch.num_processes
        share = MEMORY_SHARE
        if v.use_vllm and v.vllm_mode == "colocate":
            share *= 1 - v.vllm_gpu_memory_utilization
        reason = f"an estimated {needed / 2**30:.1f} of {memory / 2**30:.1f} GiB without it"
        return cls(needed > share * memory, reason)

    def __str__(self) -> str:
        return f"gradient checkpointing {'on' if self.on else 'off'} ({self.reason})"


def configured(v: Values) -> bool | None:
    """Return whether a recipe turns gradient checkpointing on; `None` if the run chooses."""
    if v.gradient_checkpointing is None and v.has("activation_checkpointing"):
        return v["activation_checkpointing"]
    return v.gradient_checkpointing
