"""Cut a step into micro-batches, and a micro-batch into chunks that run through the model together.

Costs are counted in tokens with padding, because the cost of a forward and backward pass depends on
these.
"""

from bisect import bisect_left

import numpy as np
import torch

MAX_CHUNKS = 8


def call_tokens(device: torch.device) -> int:
    """Return the cost of one more call of the model, in tokens, in addition to its own.

    On a CPU 64 to 128 was fastest with two and four layers; it is higher on a GPU, where batches
    also have more tokens.
    """
    return 128 if device.type == "cpu" else 512


def deal_rows(
    prompts: torch.Tensor,
    prompt_lengths: torch.Tensor,
    completion_lengths: torch.Tensor,
    live: torch.Tensor,
    pieces: int,
) -> list[torch.Tensor]:
    """Deal the live rows of a step to micro-batches, so that the largest has few tokens.

    Rows are ordered by prompt, so that those of one prompt stay together, shorter groups first. The
    order is cut where the largest piece is smallest; cuts into equal numbers of rows are among the
    candidates, so no piece becomes larger than with those. A piece without a live row gets a dead
    row.

    Args:
        prompts: (B,), the number of each row's prompt.
        prompt_lengths: (B,), in tokens.
        completion_lengths: (B,), in tokens.
        live: (B,), bool, rows that can change the gradient.
        pieces: the number of micro-batches, at most B.

    Returns:
        The indices of the rows of each piece, none empty; the other dead rows are left out.
    """
    prompt_of_row = prompts.cpu().numpy()
    prompt_tokens = prompt_lengths.cpu().numpy()
    tokens = completion_lengths.cpu().numpy()
    is_live = live.cpu().numpy()
    rows = np.flatnonzero(is_live)
    group = prompt_of_row[rows]
    group_sizes = np.maximum(np.bincount(group), 1)
    mean_tokens = np.bincount(group, weights=tokens[rows]) / group_sizes  # of a prompt's live rows
    rows = rows[np.lexsort((tokens[rows], group, mean_tokens[group]))]
    cuts = even_cuts(prompt_tokens[rows] + tokens[rows], pieces)
    dealt = [torch.from_numpy(part) for part in np.split(rows, cuts)]
    # dead rows fill empty pieces, those with tokens first
    spare = iter(sorted(np.flatnonzero(~is_live), key=lambda i: tokens[i] == 0))
    return [part if len(part) else torch.tensor([next(spare)]) for part in dealt]


def even_cuts(costs: np.ndarray, pieces: int) -> list[int]:
    """Return the rising positions that cut a sequence so that the largest sum is smallest.

    No piece is empty if there are enough items.
    """
    low, high = (int(costs.max()), int(costs.sum())) if len(costs) else (0, 0)
    # the smallest bound that greedy filling keeps; the sum of all costs is always kept
    cuts = _fill(
        costs,
        low
        + bisect_left(range(low, high), True, key=lambda bound: len(_fill(costs, bound)) < pieces),
    )
    others = [position for position in range(1, len(costs)) if position not in cuts]
    cuts += others[
        : pieces - 1 - len(cuts)
    ]  # greedy filling may need fewer pieces: add cuts, so that none is empty
    return sorted(cuts) + [len(costs)] * (pieces - 1 - len(cuts))


def _fill(costs: np.ndarray, bound: int) -> list[int]:
    """Cut before each item that would raise the running sum above the bound."""
    cuts = []
    total = 0
    for position, cost in enumerate(costs.tolist()):
        if total + cost > bound and position:
            cuts.append(position)
            total = 0
        total += cost
    return cuts


def packs(
    prompt_lengths: torch.Tensor,
    lengths: torch.Tensor,
    max_tokens: int | None = None,
    prompts: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the rows of each packed row.

    Args:
        prompt_lengths: (B,), in tokens.
        lengths: (B,), of completions, in tokens.
        max_tokens: the maximum length of a packed row of several rows; `None`: there is one packed
            row.
        prompts: (B,), the number of each row's prompt, which a packed row then has once; `None`:
            each row brings its own.
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
    lengths: torch.Tensor, per_row: int = 0, call: int | None = None, max_tokens: int | None = None
) -> list[torch.Tensor]:
    """Split rows into chunks of similar length where this saves more padding than a call costs.

    Finds, for rows sorted by length, the cuts with the smallest sum of `rows x (per_row + longest)
    + call`: `lengths` (B,) are those of completions, in tokens, every row has `per_row` more, and
    `call` is by default that of the device. A chunk of several rows has at most `max_tokens`; there
    may then be more than `MAX_CHUNKS`. Returns the indices of the rows of each chunk, shortest
    first.
    """
    order = torch.argsort(lengths.cpu(), stable=True)
    widths = lengths.cpu()[order].double().numpy() + per_row  # (B,), rising
    num = len(widths)
    call = call_tokens(lengths.device) if call is None else call
    best = np.full(num + 1, np.inf)  # best[j]: the least cost of the first j rows
    best[0] = 0.0
    start = np.zeros(num + 1, dtype=int)
    depth = np.zeros(num + 1, dtype=int)
    for j in range(1, num + 1):
        tokens = (j - np.arange(j)) * widths[j - 1]  # (j,), of a chunk from row i to row j - 1
        cost = best[:j] + tokens + call
        if max_tokens is None:
            cost[depth[:j] >= MAX_CHUNKS] = np.inf
        else:
            cost[:-1][tokens[:-1] > max_tokens] = np.inf
        i = int(cost.argmin())
        best[j] = cost[i]
        start[j] = i
        depth[j] = depth[i] + 1
    chunks = []
    while num:
        chunks.append(order[start[num] : num])
        num = start[num]
    return chunks[::-1]


def equal_prompts(
    prompt_ids: torch.Tensor, prompt_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the rows with the same prompt, for left-padded prompts (B, P) and their mask (B, P).

    Returns the first row (N,) of each of the N distinct prompts, and the number (B,) of each row's
    prompt among them.
    """
    first: dict[bytes, int] = {}  # the tokens of a prompt -> its first row
    keys = [row.tobytes() for row in torch.where(prompt_mask.bool(), prompt_ids, -1).cpu().numpy()]
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    number = {key: n for n, key in enumerate(first)}
    of_row = torch.tensor([number[key] for key in keys], device=prompt_ids.device)
    return torch.tensor(list(first.values()), device=prompt_ids.device), of_row
