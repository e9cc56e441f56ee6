"""Compute the logits of many positions, in panels and tiles.

A panel is the result of one matrix product. A tile is a part of a panel that is small enough to be
read many times.
"""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from grpo_ext.objective.sampling import SamplingParams

# A CPU multiplies fast if there are many rows, and reads fast if the data fits into its cache.
PANEL_LOGITS = 2**24  # 64 MiB in float32
TILE_LOGITS = 2**19  # 2 MiB
# On a GPU, and where truncation sorts, a panel is one tile. Sorting a tile takes about 30 bytes per
# logit. With this many logits per position, that is less memory than the (positions, 32768) tile of
# TRL's fused head takes at 2 bytes per logit.
_LOGITS_PER_POSITION = 2048
_MAX_POSITIONS = 4096
_MIN_TILE = 2**20
# a CPU keeps the probabilities of a call with at most this many logits for the backward pass
KEPT_LOGITS = 2**25  # 128 MiB
# memory to reuse for the next logits, since first writes to new memory take as long as a softmax
_spare: list[Tensor] = []


def panels(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    params: SamplingParams,
    out: Tensor | None = None,
) -> Iterator[tuple[slice, Tensor, list[tuple[slice, Tensor]]]]:
    """Yield the positions of each panel, their logits (n, V), and the tiles with their positions.

    Logits are rounded to `dtype`, as the sampler rounds them, and then converted to float32.

    Args:
        hidden: (N, H), the last hidden states.
        weight: (V, H), the weight of the language model head.
        bias: (V,) or `None`.
        dtype: the dtype in which the model computes logits.
        params: the sampling parameters; truncation makes each panel a single tile.
        out: (N, V), float32, receives the logits of all positions. `None`: each panel may overwrite
            the previous one.
    """
    panel_rows, tile_rows = _sizes(hidden, weight, params)
    on_cpu = hidden.device.type == "cpu"
    reuses_memory = out is None and on_cpu and dtype == weight.dtype == torch.float32
    memory = out
    if reuses_memory:
        memory = memory_for(min(panel_rows, len(hidden)), weight.size(0))
    for panel in _slices(0, len(hidden), panel_rows):
        x = hidden[panel].to(dtype)
        if memory is None:
            typed_bias = None if bias is None else bias.to(dtype)
            logits = torch.nn.functional.linear(x, weight.to(dtype), typed_bias).float()  # (n, V)
        else:
            logits = memory[: len(x)] if reuses_memory else memory[panel]
            added = logits if bias is None else bias  # not read with beta = 0
            torch.addmm(added, x, weight.t(), beta=int(bias is not None), out=logits)
        tile_positions = _slices(panel.start, panel.stop, tile_rows)
        tiles = list(zip(tile_positions, logits.split(tile_rows), strict=True))
        yield panel, logits, tiles
        del logits, tiles  # before the next product
    if reuses_memory and memory is not None:
        give_back(memory)


def _sizes(hidden: Tensor, weight: Tensor, params: SamplingParams) -> tuple[int, int]:
    """Return the number of positions in a panel and in a tile."""
    panel_logits = PANEL_LOGITS
    tile_logits = TILE_LOGITS
    if params.truncated or hidden.device.type != "cpu":
        positions = min(len(hidden), _MAX_POSITIONS)
        panel_logits = max(_MIN_TILE, positions * _LOGITS_PER_POSITION)
        tile_logits = panel_logits
    vocab_size = weight.size(0)
    return max(1, panel_logits // vocab_size), max(1, tile_logits // vocab_size)


def _slices(start: int, stop: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, stop)) for first in range(start, stop, step)]


def memory_for(rows: int, width: int) -> Tensor:
    """Return an uninitialized CPU tensor (rows, width), float32; reuse spare memory if possible."""
    with suppress(IndexError):  # no memory to reuse, or another thread has just taken it
        spare = _spare.pop()
        if rows and spare.untyped_storage().nbytes() >= 4 * rows * width:
            return spare.as_strided((rows, width), (width, 1), 0)
        give_back(spare)
    return torch.empty(rows, width, dtype=torch.float32, device="cpu")


def give_back(memory: Tensor) -> None:
    """Keep memory for the next logits, unless a larger block is already kept."""
    if memory.is_inference():  # only `torch.inference_mode` can write to it
        return
    num_bytes = memory.untyped_storage().nbytes()
    if all(num_bytes > spare.untyped_storage().nbytes() for spare in _spare):
        _spare[:] = [memory]


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute `total += a @ b` in float32."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())
