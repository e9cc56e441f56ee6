"""The differences of TRL 1.15: it scores only labelled positions on every device, and has fewer options."""

from collections.abc import Callable
from typing import Any

VERSION = "1.15"
FUSED_HEAD = ("_ChunkedLogProbFunction.apply(",)


def head_globals(head: Any, compact: bool, on_gpu: Callable[[Any], bool] | None) -> dict[str, Any]:
    """Return replacements for globals of `trl.trainer.utils` while a model scores."""
    return {"_ChunkedLogProbFunction": head}


def unwrap_options(args: Any) -> dict[str, Any]:
    """Return the options of `unwrap_model_for_generation`."""
    return {"gather_deepspeed3_params": args.ds3_gather_for_generation}


def parse_options(tools: Any) -> dict[str, Any]:
    """Return the options of `parse_response`."""
    return {}
