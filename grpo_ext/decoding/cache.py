"""Keys and values of the rows that are being decoded, written in place.

transformers' `DynamicLayer` copies all keys and values at every step to append one position. Here a
buffer with spare room holds them, and a step writes only its own position.
"""

from typing import Any, TypeGuard

import torch
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

SPARE = 64  # positions by which a full buffer grows


class BufferedLayer(DynamicLayer):
    """A `DynamicLayer` whose `keys` and `values` are views of longer buffers.

    The buffers are (b, heads, more positions, dim).

    It takes the states of the rows `rows` (b,) of `layer`, in this order; a row may occur several
    times.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor):
        super().__init__()
        self.dtype = layer.dtype
        self.device = layer.device
        self.is_initialized = True
        assert layer.keys is not None and layer.values is not None
        rows = rows.to(layer.device)
        self._buffers = [
            functional.pad(states[rows], (0, 0, 0, SPARE)) for states in (layer.keys, layer.values)
        ]
        self._show(layer.keys.size(-2))

    def _show(self, length: int) -> None:
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states (b, heads, new positions, dim) and return all states."""
        start = self.keys.size(-2)
        end = start + key_states.size(-2)
        for i, (states, new) in enumerate(((self.keys, key_states), (self.values, value_states))):
            if end > self._buffers[i].size(-2):
                self._buffers[i] = functional.pad(states, (0, 0, 0, end - start + SPARE))
            self._buffers[i][:, :, start:end] = new
        self._show(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the rows `indices`, and free the memory of the others."""
        length = self.keys.size(-2)
        self._buffers = [
            buffer.index_select(0, indices.to(buffer.device)) for buffer in self._buffers
        ]
        self._show(length)


def is_supported(cache: object) -> TypeGuard[DynamicCache]:
    """Whether rows of the cache can be removed and repeated."""
    if type(cache) is not DynamicCache or cache.offloading:
        return False
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def expand(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Select the rows `rows` (b,) of the cache, and make its layers writable in place.

    Layers with a sliding window stay those of transformers: they are short.
    """
    for i, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer)  # `is_supported` has checked it
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[i] = BufferedLayer(layer, rows)
        else:
            layer.batch_select_indices(rows)
