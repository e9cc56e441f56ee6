"""Load the records in the files of a checkpoint, without running code that the files contain."""

import datetime
import decimal
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from grpo_ext.common.foreign_files import open_plain
from grpo_ext.common.untrusted import first_line
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.policy import StepCounts
from grpo_ext.samplers.partial import PartialRollout
from grpo_ext.step.groups import Groups
from grpo_ext.step.records import Generation, MicroBatch, Scored

# classes that a state file may contain, in addition to tensors and plain types
RECORDS: list[Any] = [Generation, PartialRollout, Scored, KeptSet, Groups, MicroBatch, StepCounts]
# types that occur in rows of the dataset
RECORDS += [
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
]


class CheckpointMismatch(ValueError):
    """Raised if a run cannot resume exactly from a checkpoint."""


def load_plain(path: Path) -> Any:
    """Load a file that contains only tensors, plain Python values and instances of `RECORDS`.

    The tensors are loaded onto the CPU. The file must be an uncompressed archive, as `torch.save`
    writes it, because a compressed file of a few megabytes could expand to fill the memory.

    Raises:
        CheckpointMismatch: if the file cannot be read, is compressed, or contains anything else.
    """
    try:
        with open_plain(path, path.parent) as file, torch.serialization.safe_globals(RECORDS):
            if not _is_uncompressed(file):
                raise ValueError("it is not an uncompressed archive like those of torch.save")
            return torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
    ) as error:
        raise CheckpointMismatch(
            f"{path} cannot be loaded ({first_line(error)}). Resume from another checkpoint."
        ) from error


def _is_uncompressed(file: BinaryIO) -> bool:
    """Return whether a zip archive contains only uncompressed data.

    The result is also `False` if the parts are together larger than the file. The file position is
    reset to the start.
    """
    size = os.fstat(file.fileno()).st_size
    parts = zipfile.ZipFile(file).infolist()
    file.seek(0)
    stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
    return stored and sum(part.file_size for part in parts) <= size
