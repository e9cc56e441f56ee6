"""Add notes on the rounding of bfloat16 and float16, and on `fp16` where it does nothing."""

import torch

from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.typed_values import Values

HALF = ("bfloat16", "float16", "half", "bf16", "fp16")


def half_type_key(v: Values, on_gpu: bool) -> str | None:
    """Return the key that makes a run compute in bfloat16 or float16, or `None` if no key does.

    Args:
        v: the values of the recipe.
        on_gpu: whether the run uses a GPU. On a GPU, TRL sets `bf16: true` if neither `bf16` nor
            `fp16` is set. Without a GPU, `fp16: true` does nothing.
    """
    if str(v["dtype"]).removeprefix("torch.") in HALF:
        return "dtype"
    if v["fp16"] and on_gpu:
        return "fp16"
    by_default = v["bf16"] is None and on_gpu
    return "bf16" if v["bf16"] or by_default else None


def note_half_types(v: Values, findings: Findings) -> None:
    """Add a note if the run computes in half precision, and another if `fp16` has no effect."""
    on_gpu = torch.accelerator.is_available() and not v["use_cpu"]
    if v["fp16"] and not on_gpu and sharding(v) == 0:
        findings.note(
            "`fp16: true` does nothing on a CPU, where accelerate has neither an autocast to "
            "float16 nor a loss scaler, so the run computes in `dtype`. Set `bf16: false` "
            "instead to keep computing in `dtype`, or `bf16: true` for matrix multiplications in "
            "bfloat16.",
            "fp16",
        )
    key = half_type_key(v, on_gpu)
    if key is None:
        return
    findings.note(
        f"{key}: rounding to half precision can make the probabilities of sampler and trainer "
        "differ. `grpo-ext numerics --config RECIPE` measures the difference on this machine, and "
        "names the key to set if the difference is too large.",
        key,
    )
