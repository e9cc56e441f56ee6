"""Share a model's weights between two processes, in memory that one writes and the other reads.

The rest of the model is sent as a pickle, in which an index replaces each parameter and buffer.
Both processes run the same code, so the pickle is as safe as the model's code.
"""

import io
import math
import os
import pickle
import tempfile
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class Place:
    """The location and type of a tensor in the shared memory."""

    start: int  # offset in bytes
    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool  # whether it is a parameter


def tensors_of(model: Module) -> list[Tensor]:
    """Return a model's parameters, then its buffers, each once and in a fixed order."""
    return [*model.parameters(), *model.buffers()]


def places_of(tensors: list[Tensor]) -> tuple[list[Place], int]:
    """Return consecutive, aligned places for the tensors, and the size of all places in bytes."""
    places = []
    start = 0
    for tensor in tensors:
        is_parameter = isinstance(tensor, Parameter)
        places.append(Place(start, tuple(tensor.shape), tensor.dtype, is_parameter))
        start += math.ceil(tensor.nbytes / ALIGNMENT) * ALIGNMENT
    return places, start


def new_memory(size: int) -> int:
    """Create an unnamed file of `size` bytes, and return its descriptor.

    The system frees the file when no process has it open or mapped.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("weights")
    else:
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def mapped(fd: int, size: int, places: list[Place]) -> list[Tensor]:
    """Map a file into memory and return tensors that use this memory.

    All processes that map the file share the values of the tensors.

    Args:
        fd: the descriptor of the file.
        size: the size of the file, in bytes.
        places: the places of the tensors in the file.
    """
    memory = torch.from_file(f"/dev/fd/{fd}", shared=True, size=size, dtype=torch.uint8)
    tensors = []
    for place in places:
        num_bytes = math.prod(place.shape) * place.dtype.itemsize
        tensor_bytes = memory[place.start : place.start + num_bytes]
        tensors.append(tensor_bytes.view(place.dtype).view(place.shape))
    return tensors


def no_hook(*args: object, **kwargs: object) -> None:
    """Do nothing, in place of a hook that is defined inside a function and cannot be pickled.

    Sampling does not need such hooks. Gradient checkpointing, for example, adds one.
    """


def packed(model: Module) -> bytes:
    """Pickle a model without its tensors; raise `ValueError` if the model cannot be pickled.

    A model cannot be pickled, for example, if its weights are quantized or its class is defined in
    the main program. Functions defined inside other functions are replaced by `no_hook`.
    """
    indices = {id(tensor): i for i, tensor in enumerate(tensors_of(model))}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            if not isinstance(obj, Tensor) or id(obj) not in indices:
                return None
            if type(obj) not in (Tensor, Parameter):  # such as a quantized weight
                raise TypeError(
                    f"a tensor of type {type(obj).__name__} cannot be copied as plain numbers"
                )
            return indices[id(obj)]

        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, FunctionType) and "<locals>" in obj.__qualname__:
                return partial, (no_hook,)
            if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__":
                raise TypeError(
                    f"{obj.__qualname__} is defined in the main program, and must be moved to a "
                    "module that the other process can import"
                )
            return NotImplemented

    buffer = io.BytesIO()
    try:
        Pickler(buffer).dump(model)
    except Exception as error:
        raise ValueError(
            f"`sampler: process` cannot copy this model to another process ({error}). Fix "
            "the cause, or remove `sampler: process`."
        ) from error
    return buffer.getvalue()


def unpacked(model: bytes, places: list[Place], tensors: list[Tensor]) -> Any:
    """Unpickle a model so that it uses the given tensors; parameters do not require gradients.

    Args:
        model: the pickle, from `packed`.
        places: the places of the tensors; `trained` marks the parameters.
        tensors: the model's parameters and buffers, in the order of `tensors_of`.
    """
    model_tensors = []
    for place, tensor in zip(places, tensors, strict=True):
        if place.trained:
            tensor = Parameter(tensor, requires_grad=False)
        model_tensors.append(tensor)

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, index: int) -> Tensor:
            return model_tensors[index]

    return Unpickler(io.BytesIO(model)).load()
