"""Estimates of the memory of a run on each GPU and of the size of its checkpoints.

Per GPU, with W processes, B completions of a micro-batch and T tokens of prompt and completion:

- weights: parameters x bytes of their dtype; / W where they are sharded (ZeRO-3, FSDP)
- gradients: trained parameters x bytes; / W under ZeRO-2, ZeRO-3, FSDP
- optimizer: trained parameters x bytes of its states (AdamW: two of the parameter's dtype;
  DeepSpeed: 12 bytes, with a float32 copy); / W under ZeRO and FSDP
- reference: a second set of weights if beta is above 0 and no adapter is trained
- activations: 34 x B x T x hidden bytes in each layer (Korthikanti et al. 2022, arXiv 2205.05198,
  without attention maps); with gradient checkpointing in one layer, plus 2 x B x T x hidden bytes
  in each
- cache, if transformers samples: 2 x layers x key-value width x 2 bytes for each token of a
  process's share of a generation
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.typed_values import Values

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a model that the formulas need."""

    parameters: int
    trainable: int  # under LoRA only the adapter's
    dtype: str  # of the weights by the model's config; a recipe's `dtype` replaces it
    hidden_size: int  # of the text model, like the next two
    num_hidden_layers: int
    kv_width: int  # key-value heads x their size


def weight_bytes(size: ModelSize, v: Values) -> int:
    """Return the bytes of one weight as the recipe loads the model."""
    dtype = v.dtype if v.dtype not in (None, "auto") else size.dtype
    return BYTES.get(str(dtype).removeprefix("torch."), 4)


def trained_bytes(size: ModelSize, v: Values) -> int:
    """Return the bytes of one trained weight; peft keeps adapters in float32."""
    return 4 if v.use_peft else weight_bytes(size, v)


def optimizer_bytes(size: ModelSize, v: Values, deepspeed: bool) -> int:
    """Return the bytes of the optimizer's state for each trained weight."""
    trained = trained_bytes(size, v)
    name = v.optim
    if "8bit" in name:
        return 2
    if name.startswith("adamw"):
        return 12 if deepspeed and (v.bf16 is not False or v.fp16) else 2 * trained
    return trained if name.startswith(("lion", "sgd", "rmsprop", "adagrad")) else 0


def checkpoint_bytes(size: ModelSize, v: Values, deepspeed: bool = False) -> int:
    """Return the bytes of a checkpoint: the trained weights, and the optimizer's state unless
    `save_only_model` is set.
    """
    states = 0 if v.save_only_model else optimizer_bytes(size, v, deepspeed)
    return size.trainable * (trained_bytes(size, v) + states)


def longest_completion(
    size: ModelSize, v: Values, batch: Batch, room: int, sharding: int = 0, prompt: int = 0
) -> int:
    """Return the tokens of the longest completion that a GPU with `room` bytes trains on; 0 if the
    model does not fit.

    By estimate, with one completion per micro-batch and gradient checkpointing. Without vLLM a
    cache for all completions of a process counts, too.
    """
    alone = replace(
        batch,
        per_device_train_batch_size=1,
        generation_batch_size=batch.completions,
        steps_per_generation=None,
    )

    def total(length: int) -> int:
        values = v.replaced(gradient_checkpointing=True, max_completion_length=length)
        return memory_estimate(size, values, alone, sharding, prompt)["total"]

    return bisect_right(range(1, 2**24), room, key=total)


def memory_estimate(
    size: ModelSize, v: Values, batch: Batch, sharding: int = 0, prompt: int = 0
) -> dict[str, int]:
    """Return the bytes on each GPU by part, and their sum as `total`; `sharding` as
    `folder.sharding` returns it, `prompt` the tokens of a prompt.
    """
    share = batch.num_processes
    sequences = batch.per_device_train_batch_size
    length = prompt + (v.max_completion_length or 0)
    layer = 34 * sequences * length * size.hidden_size
    kept = 2 * sequences * length * size.hidden_size * size.num_hidden_layers
    weights = size.parameters * weight_bytes(size, v) // (share if sharding >= 3 else 1)
    sampled = batch.completions // share * length
    parts = {
        "weights": weights,
        "gradients": size.trainable * trained_bytes(size, v) // (share if sharding >= 2 else 1),
        "optimizer": size.trainable
        * optimizer_bytes(size, v, 1 <= sharding <= 3)
        // (share if sharding else 1),
        "reference": weights if v.beta and not v.use_peft else 0,
        "activations": layer + kept if v.gradient_checkpointing else layer * size.num_hidden_layers,
        "cache": 0 if v.use_vllm else 2 * size.num_hidden_layers * size.kv_width * 2 * sampled,
    }
    return {**parts, "total": sum(parts.values())}
