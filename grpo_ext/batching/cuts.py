"""Split a step into micro-batches, and each micro-batch into chunks, one per model call.

Costs are in tokens, which determine the time and memory of a forward and backward pass. The cost of
a chunk includes its padding.
"""

from bisect import bisect_left

import numpy as np
import torch
from torch import Tensor

MAX_CHUNKS = 8


def call_tokens(device: torch.device) -> int:
    """Return the fixed overhead of a model call, as the number of tokens that would take as long.

    The value is 128 on a CPU, where values from 64 to 128 were fastest for models with two and four
    layers. It is 512 on other devices, where calls have more overhead and batches more tokens.
    """
    return 128 if device.type == "cpu" else 512


def deal_rows(
    prompts: Tensor,
    prompt_lengths: Tensor,
    completion_lengths: Tensor,
    live: Tensor,
    num_pieces: int,
) -> list[Tensor]:
    """Distribute the live rows of a step over micro-batches with similar numbers of tokens.

    The live rows are ordered so that those of one prompt are adjacent, and prompts whose
    completions are shorter on average come first. They are cut into pieces in this order, so that
    the largest piece has as few tokens as possible: never more than if all pieces had the same
    number of rows. If there are fewer live rows than pieces, each empty piece gets a dead row.

    Args:
        prompts: (B,), the index of each row's prompt.
        prompt_lengths: (B,), in tokens.
        completion_lengths: (B,), in tokens.
        live: (B,), bool, whether each row can affect the gradient; the other rows are dead.
        num_pieces: the number of micro-batches, at most B.

    Returns:
        The row indices of each piece; no piece is empty. Dead rows that fill no piece are left out.
    """
    prompt_of_row = prompts.cpu().numpy()  # (B,)
    prompt_tokens = prompt_lengths.cpu().numpy()  # (B,)
    tokens = completion_lengths.cpu().numpy()  # (B,)
    is_live = live.cpu().numpy()  # (B,)
    rows = np.flatnonzero(is_live)
    group = prompt_of_row[rows]  # of each live row
    group_sizes = np.maximum(np.bincount(group), 1)
    group_tokens = np.bincount(group, weights=tokens[rows])
    mean_tokens = group_tokens / group_sizes  # of a prompt's live rows
    order = np.lexsort((tokens[rows], group, mean_tokens[group]))
    rows = rows[order]
    costs = prompt_tokens[rows] + tokens[rows]
    cuts = even_cuts(costs, num_pieces)
    # dead rows fill empty pieces; those with tokens come first
    dead_rows = np.flatnonzero(~is_live)
    is_empty = tokens[dead_rows] == 0
    fillers = iter(dead_rows[np.argsort(is_empty, kind="stable")])
    dealt = []
    for piece_rows in np.split(rows, cuts):
        if len(piece_rows) == 0:
            piece_rows = np.array([next(fillers)])
        dealt.append(torch.from_numpy(piece_rows))
    return dealt


def even_cuts(costs: np.ndarray, num_pieces: int) -> list[int]:
    """Return ascending positions that cut `costs` into pieces whose largest sum is minimal.

    There are `num_pieces - 1` positions. No piece is empty if there are at least `num_pieces`
    costs; otherwise, the last pieces are empty.

    Args:
        costs: (n,), the integer cost of each item.
        num_pieces: the number of pieces.
    """
    num_cuts = num_pieces - 1
    if len(costs) == 0:
        return [0] * num_cuts

    def suffices(bound: int) -> bool:
        cuts = _fill(costs, bound)
        return len(cuts) <= num_cuts

    # with the sum of all costs as the bound, greedy filling needs no cut
    largest_cost = int(costs.max())
    bounds = range(largest_cost, int(costs.sum()))
    smallest_bound = largest_cost + bisect_left(bounds, True, key=suffices)
    cuts = _fill(costs, smallest_bound)
    # greedy filling may need fewer cuts: add some so that no piece is empty
    for position in range(1, len(costs)):
        if len(cuts) == num_cuts:
            break
        if position not in cuts:
            cuts.append(position)
    missing = num_cuts - len(cuts)
    return sorted(cuts) + [len(costs)] * missing


def _fill(costs: np.ndarray, bound: int) -> list[int]:
    """Return greedy cuts of `costs`: a piece ends before its sum would exceed `bound`.

    An item that alone exceeds `bound` is a piece by itself. There is no cut before the first item.
    """
    cuts = []
    total = 0
    for position, cost in enumerate(costs.tolist()):
        if total + cost > bound and position:
            cuts.append(position)
            total = 0
        total += cost
    return cuts


def packs(
    prompt_lengths: Tensor,
    lengths: Tensor,
    max_tokens: int | None = None,
    prompts: Tensor | None = None,
) -> list[Tensor]:
    """Group rows into packed rows, and return the row indices of each packed row.

    Args:
        prompt_lengths: (B,), the lengths of the prompts, in tokens.
        lengths: (B,), the lengths of the completions, in tokens.
        max_tokens: the maximum length of a packed row; a row that is longer by itself is packed
            alone. If `None`, all rows are packed into one.
        prompts: (B,), the index of each row's prompt. A packed row contains each prompt only once.
            If `None`, each row has its own copy of its prompt.
    """
    if max_tokens is None:
        return [torch.arange(len(lengths))]
    if prompts is None:
        prompts = torch.arange(len(lengths))
    prompts = prompts.cpu()
    packed_rows: list[list[int]] = []
    tokens = 0  # of the current packed row
    last_prompt = None
    for i in prompts.argsort(stable=True).tolist():
        prompt = int(prompts[i])
        completion_tokens = int(lengths[i])
        with_prompt = int(prompt_lengths[i]) + completion_tokens
        added = completion_tokens if prompt == last_prompt else with_prompt
        if not packed_rows or tokens + added > max_tokens:
            packed_rows.append([])
            tokens = 0
            added = with_prompt
        packed_rows[-1].append(i)
        tokens += added
        last_prompt = prompt
    return [torch.tensor(rows) for rows in packed_rows]


def length_chunks(
    lengths: Tensor,
    per_row: int = 0,
    call: int | None = None,
    max_tokens: int | None = None,
) -> list[Tensor]:
    """Sort rows by length, and split them into chunks so that the total cost is minimal.

    A chunk costs `rows x (per_row + longest) + call`, where `rows` is the number of its rows and
    `longest` is the length of its longest completion. Only chunks that `max_tokens` allows are
    considered. If `max_tokens` is `None`, the total cost may exceed the minimum, because the number
    of chunks is limited.

    Args:
        lengths: (B,), the lengths of the completions, in tokens.
        per_row: the number of tokens that every row has in addition to its completion.
        call: the overhead of a call, in tokens; `None` uses `call_tokens(lengths.device)`.
        max_tokens: the maximum size of a chunk of several rows, in tokens with padding; a single
            row may exceed it. If `None`, the size is not limited, but there are at most
            `MAX_CHUNKS` chunks.

    Returns:
        The row indices of each chunk; the chunk with the shortest rows comes first.
    """
    if call is None:
        call = call_tokens(lengths.device)
    lengths = lengths.cpu()
    order = torch.argsort(lengths, stable=True)
    widths = lengths[order].double().numpy() + per_row  # (B,), ascending
    num_rows = len(widths)
    # for the first j rows: the least cost, the start of the last chunk, and the number of chunks
    least_cost = np.full(num_rows + 1, np.inf)
    least_cost[0] = 0.0
    last_start = np.zeros(num_rows + 1, dtype=int)
    num_chunks = np.zeros(num_rows + 1, dtype=int)
    for end in range(1, num_rows + 1):
        sizes = end - np.arange(end)  # (end,), rows of a chunk from each start
        tokens = sizes * widths[end - 1]  # (end,)
        cost = least_cost[:end] + tokens + call  # (end,)
        if max_tokens is None:
            is_refused = num_chunks[:end] >= MAX_CHUNKS
        else:
            is_refused = (tokens > max_tokens) & (sizes > 1)
        cost[is_refused] = np.inf
        start = int(cost.argmin())
        least_cost[end] = cost[start]
        last_start[end] = start
        num_chunks[end] = num_chunks[start] + 1
    chunks = []
    end = num_rows
    while end > 0:
        start = last_start[end]
        chunks.append(order[start:end])
        end = start
    chunks.reverse()
    return chunks


def equal_prompts(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the rows that have the same prompt.

    Args:
        prompt_ids: (B, P), left-padded.
        prompt_mask: (B, P), 1 for tokens of the prompt.

    Returns:
        The first row (N,) of each of the N distinct prompts, in order of appearance, and the index
        (B,) of each row's prompt among them.
    """
    tokens = torch.where(prompt_mask.bool(), prompt_ids, -1)  # (B, P)
    numbers: dict[bytes, int] = {}  # indices of the distinct prompts, by their tokens
    first_rows: list[int] = []
    prompt_of_row = []
    for row, prompt in enumerate(tokens.cpu().numpy()):
        key = prompt.tobytes()
        if key not in numbers:
            numbers[key] = len(numbers)
            first_rows.append(row)
        prompt_of_row.append(numbers[key])
    device = prompt_ids.device
    return (
        torch.tensor(first_rows, device=device),
        torch.tensor(prompt_of_row, device=device),
    )
