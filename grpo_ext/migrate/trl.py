"""Translate the settings of TRL's command line and of open-r1, which uses TRL 0.18."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from grpo_ext.migrate.batches import write_batch
from grpo_ext.migrate.draft import Draft, Setting, texts_of
from grpo_ext.migrate.rewards import write_rewards
from grpo_ext.recipe.batch import Batch

# accelerate configs of TRL and open-r1, and ours that do the same
ACCELERATE_CONFIGS = {
    "single_gpu": "single_gpu",
    "multi_gpu": "ddp",
    "ddp": "ddp",
    "deepspeed_zero1": "zero2",
    "deepspeed_zero2": "zero2",
    "deepspeed_zero3": "zero3",
    "zero1": "zero2",
    "zero2": "zero2",
    "zero3": "zero3",
    "fsdp": "fsdp2",
    "fsdp1": "fsdp2",
    "fsdp2": "fsdp2",
}
PROCESSES_OF_CONFIGS = 8  # the number in all of these configs except `single_gpu`
DEFAULT_SIZES = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_iterations": 1,
}


def translate(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Translate TRL's rewards, data mixture, accelerate config and batch sizes.

    The other settings remain in `draft.left`.

    Args:
        draft: the recipe under construction.
        found: the number of processes that the launcher starts, or `None` if it is unknown.
        processes: the number of processes for the recipe; if `None`, `found`.

    Returns:
        The batch sizes of the recipe.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    rewards = draft.take("reward_funcs")
    model = draft.take("reward_model_name_or_path")
    names = texts_of(rewards)
    if model is not None:
        names = [str(model.value), *names]
    write_rewards(draft, "trl", rewards or model, names)
    write_mixture(draft)
    return write_launch(draft, found, processes)


def translate_open_r1(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Translate open-r1's settings that need more than renaming.

    These are the rewards, the prompt column, the data mixture, the vLLM mode, the accelerate config
    and the batch sizes. The other settings remain in `draft.left`.

    Args:
        draft: the recipe under construction.
        found: the number of processes that the launcher starts, or `None` if it is unknown.
        processes: the number of processes for the recipe; if `None`, `found`.

    Returns:
        The batch sizes of the recipe.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    rewards = draft.take("reward_funcs")
    names = ["accuracy", "format", "tag_count"] if rewards is None else texts_of(rewards)
    write_rewards(draft, "open-r1", rewards, names)
    column = str(draft.known("dataset_prompt_column", default="prompt"))
    if column.isidentifier():
        draft.write("user_prompt", f"{{{column}}}")
    else:
        draft.write("prompt_column", column)
    mixture = draft.take("dataset_mixture")
    if mixture is not None:
        value = mixture.value if isinstance(mixture.value, Mapping) else {}
        draft.left["datasets"] = Setting("datasets", value.get("datasets"), mixture.place)
        write_mixture(draft)
    if "use_vllm" in draft.left and "vllm_mode" not in draft.left:
        draft.write("vllm_mode", "server", comment="the default of open-r1")
    return write_launch(draft, found, processes)


def write_mixture(draft: Draft) -> None:
    """Write the name of a mixture's first dataset, and add a remark if anything is left out."""
    mixture = draft.take("datasets")
    if mixture is None:
        return
    parts = mixture.value if isinstance(mixture.value, list) else [mixture.value]
    first = parts[0] if parts and isinstance(parts[0], Mapping) else {}
    name = first.get("path") or first.get("id")
    if isinstance(name, str):
        draft.write("dataset_name", name, mixture)
    if not isinstance(name, str):
        draft.remark(
            mixture,
            "not taken over: the first dataset has no name. Put all rows into one file or hub "
            "dataset, and set dataset_name to it.",
        )
    elif len(parts) != 1 or len(first) > 1:
        draft.remark(
            mixture,
            "only the name of the first dataset was taken over. Put all rows into one file or hub "
            "dataset, and set dataset_name to it.",
        )


def write_launch(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Write the accelerate config and the batch sizes, and return the batch sizes.

    Args:
        draft: the recipe under construction.
        found: the number of processes that the launcher starts, or `None` if it is unknown. The
            setting `num_processes` takes precedence; if neither gives a number, it follows from the
            accelerate config.
        processes: the number of processes for the recipe; if `None`, the other project's number.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    config = draft.take("accelerate_config")
    found = draft.number("num_processes", default=0) or found
    if config is not None:
        stem = PurePosixPath(str(config.value)).stem
        ours = ACCELERATE_CONFIGS.get(stem)
        if ours is None:
            draft.remark(config, "not taken over. Set accelerate_config to the file's path.")
        else:
            draft.write("accelerate_config", ours, config, f"{stem} there")
            if found is None:
                found = 1 if stem == "single_gpu" else PROCESSES_OF_CONFIGS
    return write_batch(draft, found, processes, DEFAULT_SIZES)
