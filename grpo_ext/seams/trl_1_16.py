"""The parts of TRL 1.16 that differ from other versions."""

from collections.abc import Callable
from typing import Any

VERSION = "1.16"
# Code that `trl.trainer.utils.add_fused_lm_head` must contain.
FUSED_HEAD = ("_ChunkedLogProbFunction.apply(", "compact = _use_triton(")


def head_globals(head: Any, compact: bool, on_gpu: Callable[[Any], bool] | None) -> dict[str, Any]:
    """Return replacements for globals of `trl.trainer.utils` while a model scores.

    On a GPU TRL always leaves out positions without a label. Elsewhere it scores all positions, so that shapes stay the same.
    """
    return {"_ChunkedLogProbFunction": head, "_use_triton": lambda device: compact or bool(on_gpu and on_gpu(device))}


def unwrap_options(args: Any) -> dict[str, Any]:
    """Return the options of `unwrap_model_for_generation`."""
    return {
        "gather_deepspeed3_params": args.ds3_gather_for_generation,
        "gradient_checkpointing_kwargs": args.gradient_checkpointing_kwargs,
    }


def parse_options(tools: Any) -> dict[str, Any]:
    """Return the options of `parse_response`."""
    return {"tools": tools}
