"""Add a note if a recipe uses bfloat16 or float16, whose rounding differs between two engines."""

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.typed_values import Values

HALF = ("bfloat16", "float16", "half", "bf16", "fp16")


def half_type_key(v: Values, on_gpu: bool) -> str | None:
    """Return the key that makes a run compute in bfloat16 or float16; `None` if it does not.

    Args:
        v: the values of the recipe.
        on_gpu: whether the run has a GPU, on which TRL sets `bf16: true` if nothing else is set.
    """
    if str(v["dtype"]).removeprefix("torch.") in HALF:
        return "dtype"
    if v["fp16"]:
        return "fp16"
    by_default = v["bf16"] is None and on_gpu
    return "bf16" if v["bf16"] or by_default else None


def note_half_types(v: Values, findings: Findings) -> None:
    """If a run uses bfloat16 or float16, add a note on the command that measures its rounding."""
    key = half_type_key(v, gpu_is_there() and not v["use_cpu"])
    if key is None:
        return
    findings.note(
        f"{key}: in half types the probabilities of sampler and trainer differ by rounding. "
        "`grpo-ext numerics --config RECIPE` measures on this machine by how much, and names the "
        "key to set if it is too much.",
        key,
    )
