"""A KV cache that is written in place, for the rows being decoded.

transformers' `DynamicLayer` copies all keys and values at every step to append one position. Here
they are stored in a buffer with spare room, and each step writes only its own position.
"""

from typing import TypeGuard

from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

SPARE = 64  # positions by which a full buffer grows


class BufferedLayer(DynamicLayer):
    """A `DynamicLayer` whose `keys` and `values` are views of longer buffers.

    Args:
        layer: the layer whose states are copied, (b, heads, positions, dim).
        rows: the rows of `layer` to take, (b',), in this order; a row may occur several times.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, layer: DynamicLayer, rows: Tensor):
        super().__init__()
        assert layer.keys is not None and layer.values is not None
        self.dtype = layer.dtype
        self.device = layer.device
        self.is_initialized = True
        rows = rows.to(layer.device)
        self._key_buffer = with_room(layer.keys[rows])
        self._value_buffer = with_room(layer.values[rows])
        self._set_length(layer.keys.size(-2))

    def _set_length(self, length: int) -> None:
        self.keys = self._key_buffer[:, :, :length]
        self.values = self._value_buffer[:, :, :length]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new positions and return all states.

        Args:
            key_states: the keys, (b, heads, new positions, dim).
            value_states: the values, in the same shape.
            args: ignored, as in `DynamicLayer`.
            kwargs: ignored, as in `DynamicLayer`.
        """
        start = self.keys.size(-2)
        num_new = key_states.size(-2)
        end = start + num_new
        if end > self._key_buffer.size(-2):
            self._key_buffer = with_room(self.keys, num_new)
            self._value_buffer = with_room(self.values, num_new)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self._set_length(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows `indices`, and free the memory of the others."""
        length = self.keys.size(-2)
        indices = indices.to(self.device)
        self._key_buffer = self._key_buffer[indices]
        self._value_buffer = self._value_buffer[indices]
        self._set_length(length)


def with_room(states: Tensor, positions: int = 0) -> Tensor:
    """Return a copy of states with room for `positions` more positions, plus `SPARE`."""
    return pad(states, (0, 0, 0, positions + SPARE))


def is_supported(cache: object) -> TypeGuard[DynamicCache]:
    """Return whether rows of the cache can be removed and repeated."""
    if type(cache) is not DynamicCache or cache.offloading:
        return False
    supported_layers = (DynamicLayer, DynamicSlidingWindowLayer)
    return all(type(layer) in supported_layers for layer in cache.layers)


def expand(cache: DynamicCache, rows: Tensor) -> None:
    """Select the rows `rows` (b,) of the cache, and make its layers writable in place.

    Layers with a sliding window are short, so they remain those of transformers.
    """
    for i, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer)  # `is_supported` has checked it
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[i] = BufferedLayer(layer, rows)
        else:
            layer.batch_select_indices(rows)
