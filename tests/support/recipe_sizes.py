"""The package's recipes, and the settings that make each one run in seconds on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.places import REPO

FOLDER = REPO / "recipes"
# recipes that are tested with a model of their own family: `tests/recipe/test_model_recipes.py`
MODEL_RECIPES = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path
    for family in ("gemma-", "llama-", "qwen3")
    for path in sorted(FOLDER.rglob(f"{family}*.yaml"))
}
RECIPES = sorted(
    p
    for p in FOLDER.rglob("*.yaml")
    if p.parent.name != "accelerate" and "sft" not in p.stem and p not in MODEL_RECIPES.values()
)

SIZES = {
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,  # whole groups of 16
    "max_completion_length": 24,  # two turns of an episode fit
    "max_train_samples": 16,
    "max_eval_samples": 4,
    "dataset_name": None,
    "held_out_share": None,  # of a dataset
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


def small_recipe(name: str, folder: Path, sizes: dict[str, Any]) -> Path:
    """Write a recipe of the package with some lines replaced into `folder`."""
    lines = (REPO / "recipes" / name).read_text(encoding="utf-8").splitlines()
    unchanged = [line for line in lines if line.split(":")[0] not in sizes]
    replaced = [f"{key}: {value}" for key, value in sizes.items()]
    path = folder / Path(name).name
    path.write_text("\n".join([*unchanged, *replaced]), encoding="utf-8")
    return path
