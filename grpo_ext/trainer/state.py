"""Records in the files of a checkpoint: loading a file can run no code."""

import datetime
import decimal
import pickle
from pathlib import Path
from typing import Any

import torch

from grpo_ext.objective.aggregate import StepCounts
from grpo_ext.objective.kept import KeptSet
from grpo_ext.step.groups import Groups
from grpo_ext.step.records import Generation, MicroBatch, PartialRollout, Scored

# a file may hold these, tensors and plain types
RECORDS: list[Any] = [Generation, PartialRollout, Scored, KeptSet, Groups, MicroBatch, StepCounts]
# in rows of the data set
RECORDS += [
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
]


class CheckpointMismatch(ValueError):
    """A checkpoint from which this run cannot continue exactly."""


def load_plain(path: Path) -> Any:
    """Load tensors, plain types and records on the CPU; `CheckpointMismatch` if the file is damaged or holds anything else."""
    try:
        with torch.serialization.safe_globals(RECORDS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointMismatch(
            f"{path} cannot be loaded ({str(error).partition(chr(10))[0]})."
        ) from error
