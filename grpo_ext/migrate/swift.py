"""Translate ms-swift's settings for data, prompts, rewards, adapters and batch sizes."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from pathlib import Path

from grpo_ext.common.foreign_files import read_text
from grpo_ext.migrate.batches import write_batch
from grpo_ext.migrate.draft import Draft, texts_of
from grpo_ext.migrate.rewards import write_rewards
from grpo_ext.recipe.batch import Batch

DATA = re.compile(
    r"(?:(?P<hub>hf|ms)::)?(?P<name>[^#]+?)(?::(?P<subset>[\w/-]+))?(?:#(?P<count>\d{1,12}))?"
)
MOST_PLUGIN_BYTES = 2**20
# values of `deepspeed`, and the accelerate config that does the same
DEEPSPEED = {"zero1": "zero2", "zero2": "zero2", "zero3": "zero3"}
DEFAULT_STEP = 16  # completions per optimizer step if gradient_accumulation_steps is not set
LORA_DEFAULTS = {
    "lora_r": 8,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_target_modules": ["all-linear"],
}


def translate(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Translate the settings that need more than renaming, and return the batch sizes.

    The other settings remain in `draft.left`.

    Args:
        draft: the recipe under construction.
        found: the number of processes that the launcher starts, or `None` if it is unknown.
        processes: the number of processes for the recipe; if `None`, `found`.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    draft.move("max_completion_length", "max_completion_length")
    draft.default("max_completion_length", 512, "ms-swift")  # for rewards with this default
    write_data(draft)
    write_prompt(draft)
    write_held_out(draft)
    write_all_rewards(draft)
    write_adapter(draft)
    write_sharding(draft)
    scaling = draft.take("scale_rewards")
    if scaling is not None and scaling.value == "gdpo":
        draft.write("multi_objective_aggregation", "normalize_then_sum", scaling)
    elif scaling is not None:
        draft.write("scale_rewards", scaling.value, scaling)
    words = draft.take("stop_words")
    if words is not None:
        vllm = draft.left.get("use_vllm")
        key = "stop" if vllm is not None and vllm.value is True else "stop_strings"
        draft.write("generation_kwargs", {key: texts_of(words)}, words)
    return write_all_sizes(draft, found, processes)


def write_data(draft: Draft) -> None:
    """Write the keys for the first dataset, and add remarks about columns and other datasets.

    A dataset is given as `hf::id_or_file:subset#count`, in which all but the id or file is
    optional, and the prefix may also be `ms::`.
    """
    setting = draft.take("dataset")
    names = texts_of(setting)
    if setting is not None and setting.unknown is not None:
        draft.write("dataset_name", setting.value, setting)
    elif names and (match := DATA.fullmatch(names[0])):
        draft.write("dataset_name", match["name"], setting)
        if match["subset"]:
            draft.write("dataset_config", match["subset"], setting)
        if match["count"]:
            draft.write("max_train_samples", int(match["count"]))
            draft.write("random_train_samples", True)
        is_path = match["name"].startswith((".", "/", "~")) or Path(match["name"]).suffix
        if match["hub"] != "hf" and not is_path:
            draft.remark(
                setting,
                "this is a ModelScope id, unless --use_hf true was set. Set dataset_name to "
                "the dataset's name on the Hugging Face hub, or to a file.",
            )
    if len(names) > 1:
        draft.remark(
            setting, "only the first dataset was taken over. Put all rows into one dataset."
        )
    draft.remark(
        setting,
        "ms-swift builds messages from columns such as query, problem or question. If rows have "
        'no column messages, set user_prompt: "{problem}" instead of prompt_column. If a column '
        "that a reward needs has another name, set, for example, "
        "rename_columns: {solution: answer}.",
    )


def write_prompt(draft: Draft) -> None:
    """Write the keys for the columns of prompts and rewards, and the system prompt.

    If the system prompt is in a .txt or .md file, a remark asks the user to copy it by hand.
    """
    columns = draft.take("columns")
    renamed = {}
    if columns is not None and isinstance(columns.value, Mapping):
        renamed = {str(ours): str(theirs) for theirs, ours in columns.value.items()}
    prompt = next((renamed.pop(name) for name in ("query", "messages") if name in renamed), None)
    draft.write("prompt_column", prompt or "messages")
    if renamed:
        draft.write("rename_columns", renamed, columns)
    system = draft.take("system")
    if system is None:
        return
    if str(system.value).endswith((".txt", ".md")):
        draft.missing["system_prompt"] = f"the text of {system.value}"
        draft.remark(system, "it names a file. Set system_prompt to the content of the file.")
    else:
        draft.write("system_prompt", system.value, system)


def write_held_out(draft: Draft) -> None:
    """Write the share of held-out rows, or drop the evaluation keys if nothing can be evaluated."""
    share = draft.take("split_dataset_ratio")
    if share is not None and share.value != 0:
        draft.write("held_out_share", share.value, share)
    elif "val_dataset" not in draft.left:
        for key in ("eval_strategy", "eval_steps"):
            setting = draft.take(key)
            if setting is not None:
                draft.remark(setting, "left out: no rows are held out.", by_hand=False)


def write_sharding(draft: Draft) -> None:
    """Write the accelerate config for `deepspeed`, or add a remark if none corresponds to it.

    Offloading is not taken over; if `deepspeed` asks for it, another remark says so.
    """
    setting = draft.take("deepspeed")
    if setting is None:
        return
    ours = DEEPSPEED.get(str(setting.value).removesuffix("_offload"))
    if ours is None:
        draft.remark(
            setting, "not taken over. Set accelerate_config to the path of an accelerate config."
        )
    else:
        draft.write("accelerate_config", ours, setting)
    if str(setting.value).endswith("_offload"):
        draft.remark(
            setting, "offloading was not taken over. Set it in a file for accelerate_config."
        )


def write_all_rewards(draft: Draft) -> None:
    """Write the rewards: first those of `reward_funcs`, then the reward models.

    Rewards that a plugin registers become `file.py:Class`.
    """
    plugins = texts_of(draft.take("external_plugins"))
    classes: dict[str, str] = {}
    for path in plugins:
        classes |= plugin_classes(path)
    rewards = draft.take("reward_funcs")
    models = draft.take("reward_model")
    names = [classes.get(name, name) for name in texts_of(rewards)] + texts_of(models)
    advice = ""
    if plugins:
        file = plugins[0]
        advice = (
            f"not taken over. Use '{file}:CLASS', where CLASS is the class of this reward. "
            "docs/coming-from.md says how a class of ms-swift is called."
        )
    write_rewards(draft, "ms-swift", rewards or models, names, advice)


def plugin_classes(path: str) -> dict[str, str]:
    """Return a dict that maps each reward that a plugin registers to its `file.py:Class`.

    Only statements such as `orms['name'] = Class` are found. The file is parsed, but never run. The
    dict is empty if the file cannot be read or parsed.
    """
    try:
        tree = ast.parse(read_text(Path(path), MOST_PLUGIN_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    classes = {}
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)):
            continue
        for target in node.targets:
            if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)):
                continue
            if target.value.id == "orms" and isinstance(target.slice, ast.Constant):
                classes[str(target.slice.value)] = f"{path}:{node.value.id}"
    return classes


def write_adapter(draft: Draft) -> None:
    """Write LoRA's keys, and ms-swift's default learning rate for LoRA if none is set.

    ms-swift trains LoRA by default. If all parameters are trained, nothing is written. For any
    other kind of training, only a remark is added.
    """
    kind = draft.take("tuner_type", "train_type")
    if kind is not None and kind.value == "full":
        return
    if kind is not None and kind.value != "lora":
        draft.remark(
            kind, "not taken over: only LoRA and training of all parameters are supported."
        )
        return
    draft.write("use_peft", True, kind)
    for theirs, ours in {"lora_rank": "lora_r", "target_modules": "lora_target_modules"}.items():
        draft.move(theirs, ours)
    for key, value in LORA_DEFAULTS.items():
        if key in draft.left:
            draft.move(key, key)
        else:
            draft.default(key, value, "ms-swift")
    if "learning_rate" not in draft.left and "lr" not in draft.left:
        draft.default("learning_rate", 1e-4, "ms-swift for LoRA")


def write_all_sizes(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Write the batch sizes, and a default learning rate if none is set; return the batch sizes.

    Megatron's keys may set the batch sizes, too.

    Args:
        draft: the recipe under construction.
        found: the number of processes that the launcher starts, or `None` if it is unknown.
        processes: the number of processes for the recipe; if `None`, it is the number of ms-swift's
            processes that train on different batches.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    if "learning_rate" not in draft.left and "lr" not in draft.left:
        draft.default("learning_rate", 1e-5, "ms-swift")
    found = data_parallel(draft, found)
    micro = draft.number("micro_batch_size", default=1)
    sizes = {"per_device_train_batch_size": micro, "num_generations": 8, "num_iterations": 1}
    if (size := draft.number("per_device_train_batch_size", default=0)) > 0:
        sizes["per_device_train_batch_size"] = size
    step = draft.number("global_batch_size", default=0)  # Megatron's, in completions
    share = sizes["per_device_train_batch_size"] * (found or 1)
    sizes["gradient_accumulation_steps"] = math.ceil((step or DEFAULT_STEP) / share)
    if step:
        steps = draft.number("steps_per_generation", default=1)  # in optimizer steps with Megatron
        sizes["steps_per_generation"] = steps * sizes["gradient_accumulation_steps"]
    return write_batch(draft, found, processes, sizes)


def data_parallel(draft: Draft, found: int | None) -> int | None:
    """Return how many processes train on different batches, or `None` if this is unknown.

    With Megatron, groups of processes share the same batch. If the group size does not divide the
    number of processes, every process counts.

    Args:
        draft: the recipe under construction.
        found: the number of all processes, or `None` if it is unknown. The key `gpus` takes
            precedence.
    """
    found = draft.number("gpus", default=0) or found
    parallel = 1
    for kind in ("tensor_model", "pipeline_model", "context"):
        parallel *= draft.number(f"{kind}_parallel_size", default=1)
    if found is None or found % parallel:
        return found
    return found // parallel
