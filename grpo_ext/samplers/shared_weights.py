"""The weights of a model in memory that two processes map, so that one writes them and the other
reads them in place.

The model itself travels as a pickle in which tensors are numbers: places in that memory. Both sides
are this program, so a pickle is as safe as the model's own code.
"""

import io
import os
import pickle
import tempfile
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class Place:
    """Where a tensor is in the memory."""

    start: int  # in bytes
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # whether it is a parameter


def tensors_of(model: torch.nn.Module) -> list[Tensor]:
    """Return parameters and buffers, each once, in an order that does not change."""
    return [*model.parameters(), *model.buffers()]


def places_of(tensors: list[Tensor]) -> tuple[list[Place], int]:
    """Return a place for each tensor, and the bytes that all need."""
    places = []
    start = 0
    for tensor in tensors:
        places.append(
            Place(start, tuple(tensor.shape), tensor.dtype, isinstance(tensor, torch.nn.Parameter))
        )
        start += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return places, start


def new_memory(size: int) -> int:
    """Return the descriptor of a file without a name, which is gone with the last process that has
    it.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("weights")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def mapped(fd: int, size: int, places: list[Place]) -> list[Tensor]:
    """Return the tensors of a file.

    What is written into one is seen by every process that has mapped the file.
    """
    memory = torch.from_file(f"/dev/fd/{fd}", shared=True, size=size, dtype=torch.uint8)
    tensors = []
    for place in places:
        num_bytes = torch.Size(place.shape).numel() * place.dtype.itemsize
        content = memory[place.start : place.start + num_bytes]
        tensors.append(content.view(place.dtype).view(place.shape))
    return tensors


def nothing(*args: Any, **kwargs: Any) -> None:
    """Replace a hook that is defined within a function, such as that of gradient checkpointing:
    sampling does not need it.
    """


def packed(model: torch.nn.Module) -> bytes:
    """Return a model without its tensors; `ValueError` if it cannot be pickled."""
    numbers = {id(tensor): n for n, tensor in enumerate(tensors_of(model))}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> int | None:
            if id(obj) in numbers and type(obj) not in (Tensor, torch.nn.Parameter):
                raise TypeError(
                    f"a {type(obj).__name__} is more than its numbers"
                )  # such as a quantized weight
            return numbers.get(id(obj)) if isinstance(obj, Tensor) else None

        def reducer_override(self, obj: Any) -> Any:
            local = isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__
            if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__" and not local:
                raise TypeError(f"{obj.__qualname__} is in the program itself: move it to a module")
            return (partial, (nothing,)) if local else NotImplemented

    written = io.BytesIO()
    try:
        Pickler(written).dump(model)
    except Exception as error:
        raise ValueError(
            f"sampler: process cannot copy this model to another process ({error}): use a vLLM "
            "server."
        ) from error
    return written.getvalue()


def unpacked(model: bytes, places: list[Place], tensors: list[Tensor]) -> torch.nn.Module:
    """Return a `packed` model with these tensors."""
    own = [
        torch.nn.Parameter(t, requires_grad=False) if p.trained else t
        for p, t in zip(places, tensors, strict=True)
    ]

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, number: Any) -> Tensor:
            return own[number]

    return Unpickler(io.BytesIO(model)).load()
