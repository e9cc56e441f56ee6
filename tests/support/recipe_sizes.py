"""The package's recipes, and the settings that make each one run in seconds on a CPU."""

from __future__ import annotations

from tests.support.places import REPO

RECIPES = sorted(
    p
    for p in (REPO / "recipes").rglob("*.yaml")
    if p.parent.name != "accelerate" and "sft" not in p.stem
)

SIZES = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,  # whole groups of 16
    "max_completion_length": 16,
    "max_train_samples": 16,
    "max_eval_samples": 4,
    "dataset_name": None,
    "held_out_share": None,  # of a data set
    "dataset_config": None,
    # the machine: no GPU, no vLLM, no DeepSpeed
    "accelerate_config": "cpu",
    "use_cpu": True,
    "bf16": False,
    "use_vllm": False,
    "dtype": "float32",
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
}


RECIPES.append(REPO / "examples" / "reasoning_gym" / "qwen2.5-1.5b.yaml")
