"""Records in the files of a checkpoint: loading a file can run no code."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device

from grpo_ext.objective.aggregate import StepCounts
from grpo_ext.objective.kept import KeptSet
from grpo_ext.step.groups import Groups
from grpo_ext.step.records import Generation, MicroBatch, Scored

# a file may hold these, tensors and plain types
RECORDS: list[Any] = [Generation, Scored, KeptSet, Groups, MicroBatch, StepCounts]


class CheckpointMismatch(ValueError):
    """A checkpoint from which this run cannot continue exactly."""


def load_plain(path: Path) -> Any:
    """Load tensors, plain types and records on the CPU; `CheckpointMismatch` if the file is damaged or holds anything else."""
    try:
        with torch.serialization.safe_globals(RECORDS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointMismatch(f"{path} cannot be loaded ({str(error).partition(chr(10))[0]}).") from error


def inputs_on(inputs: Any, device: torch.device) -> Any:
    """Move the inputs of a loss to a device: a micro-batch of ours, or TRL's mapping."""
    if isinstance(inputs, MicroBatch):
        return replace(inputs, rows=inputs.rows.on(device))
    return send_to_device(inputs, device)
