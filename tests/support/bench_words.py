"""The words of `grpo-ext bench` for small steps of a tiny model."""

from __future__ import annotations

SMALL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 8,
    "num_generations": 4,
    "use_cpu": "true",
    "bf16": "false",
}


def words(model, **more):
    return [
        word
        for key, value in {"model_name_or_path": model, **SMALL, **more}.items()
        for word in (f"--{key}", str(value))
    ]
