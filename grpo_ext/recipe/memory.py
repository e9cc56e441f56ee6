"""Estimate the memory of a run on each GPU and the size of its checkpoints.

Per GPU, with W processes, B completions per micro-batch and T tokens of prompt and completion:

- weights: parameters x bytes of their dtype, divided by W if they are sharded (ZeRO-3, FSDP)
- gradients: trained parameters x bytes of their dtype, divided by W with ZeRO-2, ZeRO-3 or FSDP
- optimizer: trained parameters x bytes of its states, divided by W with ZeRO or FSDP; AdamW has two
  states in the parameter's dtype or, with DeepSpeed in mixed precision, 12 bytes in all, which
  include a float32 copy of the parameter
- reference: a second set of weights if beta is above 0 and no adapter is trained
- activations: 34 x B x T x hidden bytes for each layer (Korthikanti et al. 2022, arXiv 2205.05198,
  without attention maps) or, with gradient checkpointing, 34 x B x T x hidden bytes for one layer
  and 2 x B x T x hidden bytes for each layer; twice as much in float32
- cache, unless vLLM samples: 2 x layers x key-value width x 2 bytes for each token in a process's
  share of a generation

An evaluation needs memory for the weights and, for each completion, its cache and the activations
of a single layer.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, replace

from grpo_ext.recipe.batch import Batch, whole_groups
from grpo_ext.recipe.typed_values import Values

# completions per evaluation batch, unless the recipe sets their number; 8 is transformers' default
LEAST_EVALUATED = 8
MOST_EVALUATED = 64
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class ModelSize:
    """The model dimensions that the memory estimates need."""

    parameters: int
    trainable: int  # with LoRA, only those of the adapter
    dtype: str  # dtype of the weights in the model's config; the recipe's `dtype` takes precedence
    hidden_size: int  # of the text model, like the next two
    num_hidden_layers: int
    kv_width: int  # number of key-value heads x head size


def weight_bytes(size: ModelSize, v: Values) -> int:
    """Return the bytes per weight in the dtype that the recipe sets, or else in the model's dtype.

    An unknown dtype counts as 4 bytes.
    """
    dtype = v.dtype if v.dtype not in (None, "auto") else size.dtype
    return BYTES.get(str(dtype).removeprefix("torch."), 4)


def trained_bytes(size: ModelSize, v: Values) -> int:
    """Return the bytes per trained weight, which are 4 for an adapter, because it is in float32."""
    return 4 if v.use_peft else weight_bytes(size, v)


def optimizer_bytes(size: ModelSize, v: Values, deepspeed: bool) -> int:
    """Return the bytes of optimizer state per trained weight; 0 for an unknown optimizer.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        deepspeed: whether DeepSpeed trains. With mixed precision, AdamW's state then includes a
            float32 copy of the weight.
    """
    trained = trained_bytes(size, v)
    name = v.optim
    if "8bit" in name:
        return 2
    if name.startswith("adamw"):
        return 12 if deepspeed and (v.bf16 is not False or v.fp16) else 2 * trained
    return trained if name.startswith(("lion", "sgd", "rmsprop", "adagrad")) else 0


def checkpoint_bytes(size: ModelSize, v: Values, deepspeed: bool = False) -> int:
    """Return the size of a checkpoint in bytes.

    It contains the trained weights and, unless `save_only_model` is set, the optimizer state.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        deepspeed: whether DeepSpeed trains. With mixed precision, AdamW's state then includes a
            float32 copy of the weights.
    """
    states = 0 if v.save_only_model else optimizer_bytes(size, v, deepspeed)
    return size.trainable * (trained_bytes(size, v) + states)


def layer_bytes(size: ModelSize) -> int:
    """Return the size of a layer's 16-bit activations for one token, in bytes."""
    return 34 * size.hidden_size


def cache_bytes(size: ModelSize) -> int:
    """Return the size of the 16-bit key-value cache of all layers for one token, in bytes."""
    return 2 * size.num_hidden_layers * size.kv_width * 2


def activation_bytes(size: ModelSize, v: Values, batch: Batch, length: int) -> int:
    """Return the size of a micro-batch's 16-bit activations, in bytes.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe; `gradient_checkpointing: null` counts as false.
        batch: the recipe's batch sizes.
        length: the number of tokens per sequence, prompt and completion together.
    """
    tokens = batch.per_device_train_batch_size * length
    layer = tokens * layer_bytes(size)
    if v.gradient_checkpointing:
        return layer + 2 * tokens * size.hidden_size * size.num_hidden_layers
    return layer * size.num_hidden_layers


def sampling_bytes(size: ModelSize, v: Values, batch: Batch, length: int) -> int:
    """Return the size of a process's 16-bit key-value cache for a generation, in bytes.

    The result is 0 if vLLM samples.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        batch: the recipe's batch sizes.
        length: the number of tokens per sequence, prompt and completion together.
    """
    if v.use_vllm:
        return 0
    return batch.completions // batch.num_processes * length * cache_bytes(size)


def eval_batch_size(v: Values, batch: Batch, size: ModelSize | None) -> int:
    """Return `per_device_eval_batch_size` or, if the recipe does not set it, a suitable size.

    The chosen size is the largest size, up to `MOST_EVALUATED`, for which an evaluation needs no
    more memory for activations and cache than training. Whatever the memory, it is at least
    `LEAST_EVALUATED` and `per_device_train_batch_size`, and the batches of all processes together
    consist of whole groups, as TRL requires.

    Args:
        v: the values of the recipe.
        batch: the recipe's batch sizes.
        size: the dimensions of the model; if `None`, the smallest batch size is chosen.
    """
    if v.per_device_eval_batch_size is not None:
        return v.per_device_eval_batch_size
    unit = whole_groups(v, batch.num_processes)
    units = math.ceil(max(batch.per_device_train_batch_size, LEAST_EVALUATED) / unit)
    if size is not None:
        # if the run has yet to choose, assume gradient checkpointing, which needs less memory
        if v.gradient_checkpointing is None:
            v = v.replaced(gradient_checkpointing=True)
        # all parts are proportional to the length and the precision, so one token is enough
        room = activation_bytes(size, v, batch, 1) + sampling_bytes(size, v, batch, 1)
        completions = min(room // (layer_bytes(size) + cache_bytes(size)), MOST_EVALUATED)
        units = max(units, completions // unit)
    return units * unit


def longest_that_fits(
    size: ModelSize, v: Values, batch: Batch, room: int, sharding: int = 0, prompt: int = 0
) -> int:
    """Estimate the longest completion, in tokens, that fits into `room` bytes of a GPU.

    Without vLLM, the estimate includes a cache for all completions of a process. The result is 0 if
    not even one token fits, and never more than 2^24 - 1.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe; `gradient_checkpointing: null` counts as false.
        batch: the recipe's batch sizes.
        room: the memory of the GPU, in bytes.
        sharding: how the model is sharded, as returned by `folder.sharding`.
        prompt: the number of tokens in a prompt.
    """

    def total(length: int) -> int:
        values = v.replaced(max_completion_length=length)
        return memory_estimate(size, values, batch, sharding, prompt)["total"]

    return bisect_right(range(1, 2**24), room, key=total)


def longest_completion(
    size: ModelSize, v: Values, batch: Batch, room: int, sharding: int = 0, prompt: int = 0
) -> int:
    """Estimate the longest completion, in tokens, that fits if memory is used sparingly.

    The estimate is for one completion per micro-batch, gradient checkpointing, and as many
    completions per generation as in the recipe. The result is 0 if not even one token fits, and
    never more than 2^24 - 1.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe.
        batch: the recipe's batch sizes.
        room: the memory of the GPU, in bytes.
        sharding: how the model is sharded, as returned by `folder.sharding`.
        prompt: the number of tokens in a prompt.
    """
    alone = replace(
        batch,
        per_device_train_batch_size=1,
        generation_batch_size=batch.completions,
        steps_per_generation=None,
    )
    values = v.replaced(gradient_checkpointing=True)
    return longest_that_fits(size, values, alone, room, sharding, prompt)


def memory_estimate(
    size: ModelSize, v: Values, batch: Batch, sharding: int = 0, prompt: int = 0
) -> dict[str, int]:
    """Estimate the memory needed on each GPU.

    Args:
        size: the dimensions of the model.
        v: the values of the recipe; `gradient_checkpointing: null` counts as false, and
            `max_completion_length: null` as 0.
        batch: the recipe's batch sizes.
        sharding: how the model is sharded, as returned by `folder.sharding`.
        prompt: the number of tokens in a prompt.

    Returns:
        The bytes of each part ("weights", "gradients", "optimizer", "reference", "activations",
        "cache"), and their sum as "total".
    """
    share = batch.num_processes
    length = prompt + (v.max_completion_length or 0)
    half = v.bf16 is not False or v.fp16 or weight_bytes(size, v) == 2
    activations = activation_bytes(size, v, batch, length)
    weights = size.parameters * weight_bytes(size, v)
    gradients = size.trainable * trained_bytes(size, v)
    optimizer = size.trainable * optimizer_bytes(size, v, deepspeed=1 <= sharding <= 3)
    if sharding >= 3:
        weights //= share
    if sharding >= 2:
        gradients //= share
    if sharding >= 1:
        optimizer //= share
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "reference": weights if v.beta and not v.use_peft else 0,
        "activations": activations if half else 2 * activations,
        "cache": sampling_bytes(size, v, batch, length),
    }
    return {**parts, "total": sum(parts.values())}
