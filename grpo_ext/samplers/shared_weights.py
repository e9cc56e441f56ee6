"""The weights of a model in a file that two processes map, so that one writes them and the other reads them in place.

The model itself travels as a pickle in which tensors are numbers: places in the file. Both sides are this program, so a pickle
is as safe as the model's own code.
"""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class Place:
    """Where a tensor is in the file."""

    start: int  # in bytes
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # whether it is a parameter


def tensors_of(model: torch.nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each once, in an order that does not change."""
    return [*model.parameters(), *model.buffers()]


def places_of(tensors: list[Tensor]) -> tuple[list[Place], int]:
    """Return a place for each tensor, and the bytes that all need."""
    places, start = [], 0
    for tensor in tensors:
        places.append(Place(start, tuple(tensor.shape), tensor.dtype, isinstance(tensor, torch.nn.Parameter)))
        start += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return places, start


def mapped(path: Path, size: int, places: list[Place]) -> list[Tensor]:
    """Return the tensors of a file; what is written into one is seen by every process that has mapped the file."""
    whole = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
    found = []
    for place in places:
        count = torch.Size(place.shape).numel() * place.dtype.itemsize
        found.append(whole[place.start : place.start + count].view(place.dtype).view(place.shape))
    return found


def packed(model: torch.nn.Module) -> bytes:
    """Return a model without its tensors."""
    numbers = {id(tensor): n for n, tensor in enumerate(tensors_of(model))}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            return numbers.get(id(obj)) if isinstance(obj, Tensor) else None

    written = io.BytesIO()
    Pickler(written).dump(model)
    return written.getvalue()


def unpacked(model: bytes, places: list[Place], tensors: list[Tensor]) -> torch.nn.Module:
    """Return a `packed` model with these tensors."""
    own = [torch.nn.Parameter(t, requires_grad=False) if p.trained else t for p, t in zip(places, tensors, strict=True)]

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: Any) -> Tensor:
            return own[number]

    return Unpickler(io.BytesIO(model)).load()
