"""A short run of the tiny model: its arguments and its trainer, as most tests use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig, GRPOExtTrainer

Config = TypeVar("Config", bound=GRPOConfig)
USUAL: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
}


def arguments_of(config_class: type[Config], out: Path | str, **settings: Any) -> Config:
    """Return arguments of a run on a CPU, in float32, that logs each step and saves nothing.

    Args:
        config_class: the class of the arguments, ours or TRL's.
        out: the output folder.
        settings: fields that differ from `USUAL`, or are not in it.
    """
    return config_class(output_dir=str(out), **{**USUAL, **settings})


def tiny_arguments(out: Path | str, **settings: Any) -> GRPOExtConfig:
    """Return `arguments_of` our class."""
    return arguments_of(GRPOExtConfig, out, **settings)


def tiny_trainer(
    folder: Path | str,
    reward_funcs: Sequence[Any],
    args: GRPOExtConfig,
    train_dataset: Dataset,
    trainer_class: type[GRPOExtTrainer] = GRPOExtTrainer,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> GRPOExtTrainer:
    """Return a trainer of the model in a folder; its tokenizer pads on the left.

    Args:
        folder: of the model and its tokenizer.
        reward_funcs: rewards, or their names.
        args: of the run, for example `tiny_arguments`.
        train_dataset: rows with the column `prompt`.
        trainer_class: the class of the trainer.
        dtype: of the weights.
        more: further arguments of the trainer.
    """
    return trainer_class(
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype),
        reward_funcs,
        args,
        train_dataset,
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        **more,
    )
