"""Compute the logits of many positions, in blocks and tiles.

A block is the result of one matrix multiplication. A tile is a part of a block that fits into a
CPU's cache, so that reading it repeatedly costs little. On a GPU, and with truncation, each block
is a single tile.
"""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from grpo_ext.common.projection import Projection
from grpo_ext.objective.sampling import SamplingParams

# On a CPU, large blocks are multiplied fast, and small tiles fit into the cache.
BLOCK_LOGITS = 2**24  # 64 MiB in float32
TILE_LOGITS = 2**19  # 2 MiB
# On a GPU, and if truncation sorts, a block is one tile, with at most this many logits for each
# position of the call. Sorting takes about 30 bytes per logit, so a tile takes less memory than one
# of TRL's fused head, which has 32,768 logits per position at 2 bytes each.
_LOGITS_PER_POSITION = 2048
_MAX_POSITIONS = 4096
_MIN_TILE = 2**20
# memory to reuse for the next logits, since first writes to new memory take as long as a softmax
_spare: list[Tensor] = []


def logit_blocks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    params: SamplingParams,
    out: Tensor | None = None,
) -> Iterator[tuple[slice, Tensor, list[tuple[slice, Tensor]]]]:
    """Yield each block's positions, its logits (n, V), and its tiles as (positions, logits) pairs.

    The logits are float32, and are not rounded to `dtype`. Those of the tiles are views of the
    block's logits.

    Args:
        hidden: (N, H), the last hidden states.
        weight: (V, H), the weight of the language model head.
        bias: (V,), the bias of the head; `None` if it has none.
        dtype: the dtype in which the model multiplies; hidden states, weight and bias are rounded
            to it.
        params: the sampling parameters; truncation makes each block a single tile.
        out: a float32 tensor (N, V) to write the logits of all positions to. If `None`, each block
            may overwrite the logits of the previous one.
    """
    block_rows, tile_rows = _sizes(hidden, weight, params)
    projection = Projection(weight, bias, dtype)
    reuses_memory = out is None and hidden.device.type == "cpu"
    memory = out
    if reuses_memory:
        most_rows = min(block_rows, len(hidden))
        memory = memory_for(most_rows, weight.size(0))
    for block in _slices(0, len(hidden), block_rows):
        x = hidden[block]  # (n, H)
        place = None  # (n, V)
        if memory is not None:
            place = memory[: len(x)] if reuses_memory else memory[block]
        logits = projection(x, place)  # (n, V)
        tile_positions = _slices(block.start, block.stop, tile_rows)
        tiles = list(zip(tile_positions, logits.split(tile_rows), strict=True))
        yield block, logits, tiles
        del logits, tiles  # before the next block is computed
    if reuses_memory and memory is not None:
        give_back(memory)


def _sizes(hidden: Tensor, weight: Tensor, params: SamplingParams) -> tuple[int, int]:
    """Return the maximum number of positions in a block and in a tile."""
    block_logits = BLOCK_LOGITS
    tile_logits = TILE_LOGITS
    if params.truncated or hidden.device.type != "cpu":
        positions = min(len(hidden), _MAX_POSITIONS)
        block_logits = max(_MIN_TILE, positions * _LOGITS_PER_POSITION)
        tile_logits = block_logits
    vocab_size = weight.size(0)
    block_rows = max(1, block_logits // vocab_size)
    tile_rows = max(1, tile_logits // vocab_size)
    return block_rows, tile_rows


def _slices(start: int, stop: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, stop)) for first in range(start, stop, step)]


def memory_for(rows: int, width: int) -> Tensor:
    """Return an uninitialized float32 CPU tensor (rows, width), in spare memory if possible."""
    num_bytes = 4 * rows * width
    with suppress(IndexError):  # no memory to reuse, or another thread has just taken it
        spare = _spare.pop()
        if rows and spare.untyped_storage().nbytes() >= num_bytes:
            return spare.as_strided((rows, width), (width, 1), 0)
        give_back(spare)
    return torch.empty(rows, width, dtype=torch.float32, device="cpu")


def give_back(memory: Tensor) -> None:
    """Store `memory` for reuse by `memory_for`, if it is larger than the memory stored so far.

    The caller must not use `memory` afterwards. Inference tensors (see `torch.inference_mode`) are
    not stored.
    """
    if memory.is_inference():  # only `torch.inference_mode` can write to it
        return
    num_bytes = memory.untyped_storage().nbytes()
    if all(num_bytes > spare.untyped_storage().nbytes() for spare in _spare):
        _spare[:] = [memory]


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to the float32 tensor `total` in place, with all sums in float32."""
    if total.is_cuda and a.dtype != torch.float32:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())
