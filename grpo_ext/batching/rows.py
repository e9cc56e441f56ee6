"""The completions of an optimizer step as one table, a completion a row.

TRL hands out the micro-batches of a step one by one, each as wide as the widest completion of its generation. `join_rows`
makes one table of them and `take_rows` cuts rows out of it again, no wider than they need. Padding stays where TRL has it: left
of prompts, right of completions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

PROMPT_FIELDS = ("prompt_ids", "prompt_mask")  # (B, P)
# (B, T), and what stands where there is no token. Per-sequence ratios and advantages have one column or none.
COMPLETION_FIELDS = {
    "completion_ids": 0,
    "completion_mask": 0,
    "tool_mask": 0,
    "advantages": 0.0,
    "old_per_token_logps": 0.0,
    "ref_per_token_logps": 0.0,
    "sampling_per_token_logps": 0.0,
    "sampler_logps": 0.0,
    "importance_sampling_ratio": 1.0,
}
ROW_FIELDS = ("advantages", "importance_sampling_ratio", "counted", "signal", "kept_tokens", "sampling_temperature")
STEP_FIELDS = ("num_items_in_batch", "step_counts")  # the same for all rows

Batch = dict[str, Any]


def is_table(batch: Batch) -> bool:
    """Whether every field is one that this room knows how to cut; images, for one, are not."""
    return set(batch) <= {*PROMPT_FIELDS, *COMPLETION_FIELDS, *ROW_FIELDS, *STEP_FIELDS}


def join_rows(parts: list[Batch]) -> Batch:
    """One table of several, as wide as the widest. Fields of the step are taken from the first."""
    if len(parts) == 1:
        return dict(parts[0])
    table: Batch = {}
    for name, value in parts[0].items():
        values = [part[name] for part in parts]
        if name in STEP_FIELDS or value is None:
            table[name] = value
        elif isinstance(value, list):
            table[name] = [item for items in values for item in items]
        else:
            table[name] = torch.cat(_widened(name, values, parts))
    return table


def _widened(name: str, values: list[torch.Tensor], parts: list[Batch]) -> list[torch.Tensor]:
    if name in PROMPT_FIELDS:
        widest = max(value.size(1) for value in values)
        return [pad(value, (widest - value.size(1), 0)) for value in values]
    if name in COMPLETION_FIELDS and all(_has_tokens(part, name) for part in parts):
        widest = max(value.size(1) for value in values)
        return [pad(value, (0, widest - value.size(1)), value=COMPLETION_FIELDS[name]) for value in values]
    return values


def _has_tokens(batch: Batch, name: str) -> bool:
    """Whether a field has a column a completion token."""
    return batch[name].dim() == 2 and batch[name].size(1) == batch["completion_ids"].size(1)


def take_rows(table: Batch, rows: torch.Tensor, most: int | None = None) -> Batch:
    """Some rows of a table, in the order given, cut to their longest prompt and completion.

    Args:
        table: as from `join_rows`.
        rows: (b,), indices.
        most: completion tokens to keep at most; `None` keeps all.
    """
    prompt = max(1, int(table["prompt_mask"][rows].sum(1).max()))
    completion = max(1, int(table["completion_mask"][rows].sum(1).max()))
    completion = completion if most is None else min(completion, most)
    taken: Batch = {}
    for name, value in table.items():
        if name in STEP_FIELDS or value is None:
            taken[name] = value
        elif isinstance(value, list):
            taken[name] = [value[i] for i in rows.tolist()]
        elif name in PROMPT_FIELDS:
            taken[name] = value[rows][:, value.size(1) - prompt :]
        elif name in COMPLETION_FIELDS and _has_tokens(table, name):
            taken[name] = value[rows][:, :completion]
        else:
            taken[name] = value[rows]
    return taken


def moved(batch: Batch, device: torch.device | str) -> Batch:
    """The batch's tensors on another device."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def equal_prompts(prompt_ids: torch.Tensor, prompt_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows have the same prompt.

    Args:
        prompt_ids: (B, P), left padded.
        prompt_mask: (B, P).

    Returns:
        (N,) the first row of each of the N distinct prompts, and (B,) the number of each row's prompt among them.
    """
    keys = torch.where(prompt_mask.bool(), prompt_ids, -1).cpu()  # (B, P)
    _, number = keys.unique(dim=0, return_inverse=True)  # (B,)
    first = torch.full((int(number.max()) + 1,), len(number)).scatter_reduce(
        0, number, torch.arange(len(number)), "amin"
    )
    order = first.argsort()  # as they come, which `unique` does not keep
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return first[order].to(prompt_ids.device), rank[number].to(prompt_ids.device)
