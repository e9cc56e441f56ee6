"""Build tables of completions from generations, and join them."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from grpo_ext.step.records import COLUMNS, PROMPT, Generation, Scored

# The values of fields in tables that lack them, if other tables have them.
MISSING = {
    "tool_mask": 1.0,
    "sampling_per_token_logps": torch.nan,
    "old_per_token_logps": torch.nan,
}
# The padding value of a field; 0 for all other fields.
PADDING = {"importance_sampling_ratio": 1.0}


def join(parts: Sequence[Scored]) -> Scored:
    """Join tables into one, as wide as the widest; a single table is returned unchanged.

    Raises:
        ValueError: if only some of several tables have a field that is not in `MISSING`, or if one
            of them has model inputs.
    """
    if len(parts) == 1:
        return parts[0]
    input_names = {name for part in parts for name in part.model_inputs}
    if input_names:
        raise ValueError(
            f"Completions cannot be joined: {', '.join(sorted(input_names))} belong to their batch."
        )
    return Scored(**{name: _joined_column(name, parts) for name in COLUMNS})


def _joined_column(name: str, parts: Sequence[Scored]) -> Any:
    """Return one field of several tables, padded to the widest prompt and completion."""
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    if any(column is None for column in columns) and name not in MISSING:
        raise ValueError(f"Completions cannot be joined: some have {name}, others do not.")
    if any(isinstance(column, list) for column in columns):
        return list(chain.from_iterable(columns))
    prompt_width = max(part.prompt_ids.size(1) for part in parts)
    width = max(part.width for part in parts)
    # if a table has only one column, a value per row looks like a value per token
    by_token = True
    for part, column in zip(parts, columns, strict=True):
        by_token = by_token and (column is None or part.has_tokens(column))
    widened = []
    for part, column in zip(parts, columns, strict=True):
        if column is None:
            shape = (len(part), part.width)
            column = torch.full(shape, MISSING[name], device=part.completion_ids.device)
        if name in PROMPT:
            column = pad(column, (prompt_width - column.size(1), 0))  # (B, P)
        elif by_token:
            padding = (0, width - column.size(1))
            column = pad(column, padding, value=PADDING.get(name, 0.0))  # (B, T)
        widened.append(column)
    return torch.cat(widened)


def padded(
    lists: Sequence[Sequence[float] | Tensor],
    left: bool = False,
    fill: float = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Stack lists or tensors of different lengths into one padded tensor (B, longest).

    It has at least one column.

    Args:
        lists: B lists or tensors of numbers.
        left: whether to pad on the left.
        fill: the padding value.
        dtype: the dtype of the result; `None` for the dtype of the numbers.
    """
    rows = [torch.as_tensor(numbers, dtype=dtype) for numbers in lists]
    side = "left" if left else "right"
    table = pad_sequence(rows, batch_first=True, padding_value=fill, padding_side=side)
    if table.size(1) == 0:
        return table.new_full((len(rows), 1), fill)
    return table


def table_of(
    generation: Generation, pad_token: int, left_out: Tensor, device: torch.device | str
) -> Scored:
    """Build the table of a generation, with advantages of 0.

    Args:
        generation: the generation of this rank.
        pad_token: the token that fills the padding.
        left_out: a bool mask (B,) of truncated completions that are masked: neither they nor their
            tokens are counted.
        device: the device of the tensors.
    """
    prompts = generation.prompt_ids
    completions = generation.completion_ids
    num_rows = len(completions)
    stays = ~left_out.cpu()  # (B,)
    prompt_ones = [torch.ones(len(ids), dtype=torch.long) for ids in prompts]
    completion_ones = [torch.ones(len(ids), dtype=torch.long) for ids in completions]
    policy_steps: Sequence[Sequence[int] | Tensor]
    if isinstance(generation.policy_step, int):
        step = generation.policy_step
        policy_steps = [torch.full((max(1, len(ids)),), step) for ids in completions]
    else:
        policy_steps = generation.policy_step
    sampling_logps = None
    if generation.sampling_logps is not None:
        sampling_logps = padded([logps.float() for logps in generation.sampling_logps]).to(device)
    tool_mask = None
    if generation.tool_mask is not None:
        tool_mask = padded(generation.tool_mask, fill=1)
    table = Scored(
        prompt_ids=padded(prompts, True, pad_token, torch.long),
        prompt_mask=padded(prompt_ones, left=True),
        completion_ids=padded(completions, False, pad_token, torch.long),
        completion_mask=padded(completion_ones) * stays.unsqueeze(1).long(),
        advantages=torch.zeros(num_rows),
        counted=stays.float(),
        signal=torch.ones(num_rows),
        policy_step=padded(policy_steps, dtype=torch.long),
        tool_mask=tool_mask,
        sampling_per_token_logps=sampling_logps,
        kept=generation.kept,
    )
    return table.on(device)
