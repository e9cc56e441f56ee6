"""Keys of open-r1, ms-swift and older versions of TRL, and what to write instead; `docs/coming-from.md` has whole tables."""

import dataclasses
from collections.abc import Container, Iterable

from grpo_ext.common.near import unknown
from grpo_ext.tasks import task_classes

# Fields of TRL that have no effect here.
UNUSED = ("ignore_bias_buffers",)
# key -> (where it comes from, what to write), where the nearest known key is not the answer
FOREIGN: dict[str, tuple[str, str]] = {
    "max_prompt_length": ("older TRL, open-r1", "take it out: prompts are not cut; `grpo-ext check` counts their tokens, and "
                          "the task gsm8k has max_prompt_tokens"),
    "torch_dtype": ("open-r1, ms-swift", "dtype"),
    "warmup_ratio": ("older TRL, open-r1, ms-swift", "warmup_steps: a number below 1 is a share of all steps"),
    "vllm_device": ("older TRL", "take it out: vllm_mode: colocate or server says where vLLM runs"),
    "vllm_dtype": ("older TRL", "dtype"),
    "dataset_prompt_column": ("open-r1", "task: prompts, with prompt_column"),
    "cosine_max_len": ("open-r1", "reward_funcs: [{name: cosine_scaled, max_len: ...}]"),
    "repetition_n_grams": ("open-r1", "reward_funcs: [{name: repetition_penalty, ngram_size: ...}]"),
    "repetition_max_penalty": ("open-r1, ms-swift", "reward_funcs: [{name: repetition_penalty, max_penalty: ...}]"),
    "benchmarks": ("open-r1", "take it out; `grpo-ext eval` evaluates models on held-out rows"),
    "callbacks": ("open-r1", "take it out: callbacks are an argument of GRPOExtTrainer"),
    "model": ("ms-swift", "model_name_or_path"),
    "dataset": ("ms-swift", "dataset_name, and max_train_samples for its `#1000`"),
    "rlhf_type": ("ms-swift", "take it out: `grpo-ext train` is GRPO"),
    "train_type": ("ms-swift", "use_peft: true for LoRA, nothing for all parameters"),
    "tuner_type": ("ms-swift", "use_peft: true for LoRA, nothing for all parameters"),
    "lora_rank": ("ms-swift", "lora_r"),
    "reward_model": ("ms-swift", "its id or folder among reward_funcs"),
    "dynamic_sample": ("ms-swift", "group_filter: refill"),
    "max_resample_times": ("ms-swift", "group_filter_max_rounds"),
    "overlong_filter": ("ms-swift", "mask_truncated_completions"),
    "soft_max_length": ("ms-swift", "reward_funcs: [{name: soft_overlong_punishment, max_completion_len: ...}]"),
    "soft_cache_length": ("ms-swift", "reward_funcs: [{name: soft_overlong_punishment, soft_punish_cache: ...}]"),
    "sleep_level": ("ms-swift", "vllm_enable_sleep_mode: true"),
    "vllm_enable_lora": ("ms-swift", "vllm_sync_adapter: adapter"),
    "vllm_max_lora_rank": ("ms-swift", "take it out: it follows from lora_r"),
    "move_model_batches": ("ms-swift", "take it out"),
    "log_entropy": ("ms-swift", "take it out: entropy is always logged"),
    "num_infer_workers": ("ms-swift", "vllm_tensor_parallel_size"),
}  # fmt: skip


def unknown_key(key: str, known: Iterable[str], others: Container[str], grpo: bool) -> str:
    """Return the message for a key that is not `known`; `others` are the keys of the other kind of recipe."""
    if key in UNUSED:
        return f"{key} does nothing here. Take it out."
    if key in others:
        what, command = ("supervised training", "sft") if grpo else ("GRPO", "train")
        return f"{key} is a key of {what}: `grpo-ext {command}`."
    if key in FOREIGN:
        origin, instead = FOREIGN[key]
        advice = instead if instead.startswith("take it out") else f"write {instead}"
        return f"{key} is a key of {origin}: {advice}."
    for name, cls in task_classes().items():
        if key in {f.name for f in dataclasses.fields(cls)}:
            return f"{key} belongs to the task {name!r}. Write `task: {name}`, or take it out."
    return unknown("key", key, known)
