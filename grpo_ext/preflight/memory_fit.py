"""Say whether a run fits in the memory of a GPU, and which changes to its recipe make it fit.

Memory is estimated by `recipe/memory.py`. The changes keep the number of completions per optimizer
step and per generation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grpo_ext.preflight.checkpointing import configured
from grpo_ext.preflight.forecast import Forecast, model_size
from grpo_ext.recipe.batch import Batch, batch_of
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.memory import ModelSize, longest_completion, longest_that_fits, memory_estimate
from grpo_ext.recipe.typed_values import Values

# The share of a GPU's memory that an estimate may fill. The rest is for temporary tensors and
# fragmentation, which the estimate leaves out.
MEMORY_SHARE = 0.85

Change = dict[str, str | int]  # recipe keys with new values

CHECKPOINTING: Change = {"gradient_checkpointing": True}
ADAPTER: Change = {"use_peft": True, "lora_target_modules": "all-linear"}
BFLOAT16: Change = {"dtype": "bfloat16"}


@dataclass(frozen=True)
class Remedy:
    """A change to the recipe that makes the run fit."""

    change: Change
    needed: int  # bytes that the run needs after the change


@dataclass(frozen=True)
class OnGpu:
    """An estimate of what fits into the memory of a GPU."""

    gigabytes: float  # the memory of the GPU, in GB
    needed: int  # bytes that the run needs
    room: int  # bytes that the run may need
    remedies: tuple[Remedy, ...]  # empty if the run fits, or if no change makes it fit
    longest: int  # longest completion, in tokens, that fits; 0 if none fits
    longest_alone: int  # the same with one completion per micro-batch and gradient checkpointing

    @property
    def fits(self) -> bool:
        """Whether the run fits into the memory of the GPU."""
        return self.needed <= self.room


def room_for_training(v: Values, gpu_bytes: int) -> int:
    """Return how many bytes of a GPU's memory the estimate for a run may fill.

    The share of a vLLM engine on the same GPU is subtracted, unless the engine sleeps while the
    model trains.
    """
    share = MEMORY_SHARE
    if v.use_vllm and v.vllm_mode == "colocate" and not v.vllm_enable_sleep_mode:
        share -= v.vllm_gpu_memory_utilization
    return max(0, round(share * gpu_bytes))


def with_checkpointing(recipe: Recipe, forecast: Forecast) -> Values:
    """Return a recipe's values, with `gradient_checkpointing` set to what its run would use."""
    on = configured(recipe.flat)
    if forecast.checkpointing is not None:
        on = forecast.checkpointing.on
    return recipe.flat.replaced(gradient_checkpointing=on)


def estimate_on_gpu(recipe: Recipe, forecast: Forecast, gigabytes: float) -> OnGpu | None:
    """Estimate what fits into the memory of a GPU; return `None` if the model size is unknown.

    Args:
        recipe: the recipe of the run.
        forecast: the forecast of the recipe, from `make_forecast`.
        gigabytes: the memory of the GPU, in GB.
    """
    size = forecast.size
    if size is None or forecast.memory is None:
        return None
    needed = forecast.memory["total"]
    room = room_for_training(recipe.flat, round(gigabytes * 10**9))
    remedies: list[Remedy] = []
    if needed > room:
        remedies = find_remedies(recipe, forecast, size, room)
    v = with_checkpointing(recipe, forecast)
    batch = forecast.plan.batch
    prompt = round(forecast.prompt_tokens or 0)
    longest = longest_that_fits(size, v, batch, room, sharding(v), prompt)
    longest_alone = longest_completion(size, v, batch, room, sharding(v), prompt)
    return OnGpu(gigabytes, needed, room, tuple(remedies), longest, longest_alone)


def find_remedies(recipe: Recipe, forecast: Forecast, size: ModelSize, room: int) -> list[Remedy]:
    """Return changes to a recipe that each make its run fit into `room` bytes.

    There is at most one change of each kind: gradient checkpointing, smaller micro-batches and an
    adapter. If none of them is enough alone, return one combination of changes, which may also set
    `dtype` to bfloat16. Return an empty list if no combination is enough.

    Args:
        recipe: the recipe of the run.
        forecast: the forecast of the recipe, from `make_forecast`.
        size: the dimensions of the model.
        room: the memory that the run may fill, in bytes.
    """
    v = with_checkpointing(recipe, forecast)
    adapter = size
    if not v.use_peft:
        targets = ["all-linear"]
        config = replace(recipe.model, use_peft=True, lora_target_modules=targets)
        adapter = model_size(v, config) or size

    def tried(change: Change) -> Remedy:
        values = v.replaced(**change)
        batch = batch_of(values, forecast.plan.batch.num_processes)
        prompt = round(forecast.prompt_tokens or 0)
        model = adapter if values.use_peft else size
        memory = memory_estimate(model, values, batch, sharding(values), prompt)
        return Remedy(change, memory["total"])

    smaller = list(smaller_micro_batches(v, forecast.plan.batch))
    recomputed = [] if v.gradient_checkpointing or v.deterministic else [CHECKPOINTING]
    trained = [] if v.use_peft else [ADAPTER]
    fitting = []
    for changes in (recomputed, smaller, trained):
        remedies = [tried(change) for change in changes]
        fitting += [remedy for remedy in remedies if remedy.needed <= room][:1]
    if fitting:
        return fitting
    combined: Change = {}
    for changes in (recomputed, smaller[-1:], trained, [BFLOAT16]):
        for change in changes:
            combined = combined | change
        remedy = tried(combined)
        if combined and remedy.needed <= room:
            return [remedy]
    return []


def smaller_micro_batches(v: Values, batch: Batch) -> Iterator[Change]:
    """Yield recipe changes to ever smaller micro-batches, with optimizer steps of unchanged size.

    Args:
        v: the values of the recipe.
        batch: the recipe's batch sizes.
    """
    for parts in range(2, batch.per_device_train_batch_size + 1):
        if batch.per_device_train_batch_size % parts:
            continue
        change: Change = {
            "per_device_train_batch_size": batch.per_device_train_batch_size // parts,
            "gradient_accumulation_steps": batch.gradient_accumulation_steps * parts,
        }
        if batch.steps_per_generation is not None:
            change["steps_per_generation"] = batch.steps_per_generation * parts
        yield change
