"""Translate batch sizes so that each step and generation keeps its number of completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grpo_ext.common.run_time import counted
from grpo_ext.migrate.draft import Draft
from grpo_ext.recipe.batch import Batch

BATCH_KEYS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "generation_batch_size",
)


@dataclass(frozen=True)
class Sizes:
    """The batch sizes of another project's run, in completions instead of TRL's micro-batches."""

    num_generations: int  # completions per prompt
    step: int  # per optimizer step, over all processes
    generation: int  # per generation
    micro_batch: int  # per micro-batch and process
    num_iterations: int = 1  # passes over each generation

    @property
    def steps_per_generation(self) -> int:
        """The number of optimizer steps per generation, at least 1."""
        return max(1, self.generation * self.num_iterations // self.step)


def write_sizes(draft: Draft, sizes: Sizes, processes: int) -> Batch:
    """Write batch keys that keep the step and generation sizes of another project's run.

    The micro-batch is the largest divisor of a process's share of a step that does not exceed the
    other project's micro-batch. `num_generations` is left out if it must be set by hand.

    Args:
        draft: the recipe under construction.
        sizes: the sizes of the other project's run.
        processes: the number of training processes.

    Returns:
        The batch sizes of the recipe.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    if sizes.step % processes:
        raise ValueError(
            f"an optimizer step of {counted(sizes.step, 'completion')} cannot be shared equally by "
            f"{processes} processes. Choose a --num_processes that divides {sizes.step}."
        )
    share = sizes.step // processes
    micro_batch = min(sizes.micro_batch, share)
    while share % micro_batch:
        micro_batch -= 1
    if "num_generations" not in draft.missing:
        draft.write("num_generations", sizes.num_generations)
    draft.write("per_device_train_batch_size", micro_batch)
    draft.write("gradient_accumulation_steps", share // micro_batch)
    generation: int | None = None
    if sizes.generation != sizes.step:
        generation = sizes.generation
        draft.write("generation_batch_size", generation)
    if sizes.num_iterations != 1:
        draft.write("num_iterations", sizes.num_iterations)
    return Batch(
        per_device_train_batch_size=micro_batch,
        num_processes=processes,
        gradient_accumulation_steps=share // micro_batch,
        num_generations=sizes.num_generations,
        num_iterations=sizes.num_iterations,
        generation_batch_size=generation,
    )


def sizes_of(batch: Batch) -> Sizes:
    """Convert batch sizes in TRL's terms to sizes in completions."""
    return Sizes(
        num_generations=batch.num_generations,
        step=batch.completions_per_step,
        generation=batch.completions,
        micro_batch=batch.per_device_train_batch_size,
        num_iterations=batch.num_iterations,
    )


def write_batch(
    draft: Draft, found: int | None, processes: int | None, defaults: Mapping[str, int]
) -> Batch:
    """Write batch sizes for a project that uses TRL's batch keys, and return them.

    The keys keep their values unless the number of processes changes. If it changes, the values are
    adapted so that steps and generations keep their numbers of completions. If the other project's
    number of processes is unknown, a remark says which number is assumed.

    Args:
        draft: the recipe under construction.
        found: the number of processes of the other project, or `None` if it is unknown.
        processes: the number of processes for the recipe; if `None`, that of the other project.
        defaults: the default sizes of the other project, by key.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    sizes: dict[str, int] = dict(defaults)
    for key in BATCH_KEYS:
        number = draft.number(key, default=0)
        if number:
            sizes[key] = number
    if found is None:
        found = processes or 1
        draft.remark(
            None,
            f"The number of training processes is not in the file, so {found} is assumed. "
            "Pass another number with --num_processes N.",
        )
    batch = Batch(num_processes=found, **sizes)
    if processes is not None and processes != found:
        return write_sizes(draft, sizes_of(batch), processes)
    for key, number in sizes.items():
        if key != "num_iterations" or number > 1:
            draft.write(key, number)
    return batch


def batch_lines(batch: Batch) -> list[str]:
    """Return two lines that describe the generations and the optimizer steps of a batch."""
    groups = batch.completions / batch.num_generations
    step_groups = batch.completions_per_step / batch.num_generations
    steps = batch.passes / batch.gradient_accumulation_steps
    processes = "1 process" if batch.num_processes == 1 else f"{batch.num_processes} processes"
    prompts = "1 prompt" if groups == 1 else f"{groups:g} prompts"
    step_prompts = "1 prompt" if step_groups == 1 else f"{step_groups:g} prompts"
    passes = batch.gradient_accumulation_steps
    micro_batches = "1 micro-batch" if passes == 1 else f"{passes} micro-batches"
    return [
        f"A generation: {prompts} x {batch.num_generations} completions = "
        f"{batch.completions} completions. Optimizer steps per generation: {steps:g}.",
        f"An optimizer step: {step_prompts}, {batch.completions_per_step} completions = "
        f"{processes} x {micro_batches} x {batch.per_device_train_batch_size}.",
    ]
