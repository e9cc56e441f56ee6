"""Tables of completions: built from a generation, and joined."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from grpo_ext.step.records import COLUMNS, PROMPT, Generation, Scored

# The value of a field in the tables that lack it, where other tables have it.
MISSING = {
    "tool_mask": 1.0,
    "sampling_per_token_logps": torch.nan,
    "old_per_token_logps": torch.nan,
}
PADDING = {
    "importance_sampling_ratio": 1.0
}  # the value where there is no token; 0 for all other fields


def join(parts: Sequence[Scored]) -> Scored:
    """Join several tables into one, as wide as the widest.

    `ValueError` if only some of the tables have a field, or if one has model inputs.
    """
    if len(parts) == 1:
        return parts[0]
    odd = {name for part in parts for name in part.model_inputs}
    if odd:
        raise ValueError(
            f"Completions cannot be joined: {', '.join(sorted(odd))} belong to their batch."
        )
    prompt = max(part.prompt_ids.size(1) for part in parts)
    width = max(part.width for part in parts)

    def joined(name: str, values: list[Any]) -> Any:
        if all(value is None for value in values):
            return None
        if any(value is None for value in values) and name not in MISSING:
            raise ValueError(f"Completions cannot be joined: some have {name}, others do not.")
        if any(isinstance(value, list) for value in values):
            return [item for value in values for item in value]
        # a table of one column may look as if a value per row were a value per token
        tokens = all(v is None or part.has_tokens(v) for part, v in zip(parts, values, strict=True))
        found = []
        for part, value in zip(parts, values, strict=True):
            if value is None:
                value = torch.full(
                    (len(part), part.width), MISSING[name], device=part.completion_ids.device
                )
            if name in PROMPT:
                value = pad(value, (prompt - value.size(1), 0))
            elif tokens:
                value = pad(value, (0, width - value.size(1)), value=PADDING.get(name, 0.0))
            found.append(value)
        return torch.cat(found)

    return Scored(
        **{name: joined(name, [getattr(part, name) for part in parts]) for name in COLUMNS}
    )


def padded(
    lists: Sequence[Any], left: bool = False, fill: float = 0, dtype: torch.dtype | None = None
) -> Tensor:
    """Stack lists or tensors of different lengths into one tensor (B, longest) with at least one
    column.
    """
    tensors = [torch.as_tensor(item, dtype=dtype) for item in lists]
    table = pad_sequence(
        tensors, batch_first=True, padding_value=fill, padding_side="left" if left else "right"
    )
    return table if table.size(1) else table.new_full((len(tensors), 1), fill)


def table_of(
    generation: Generation, pad_token: int, left_out: Tensor, device: torch.device | str
) -> Scored:
    """Build the table of a generation, with advantages of 0.

    Args:
        generation: the generation of this rank.
        pad_token: the token that fills the padding.
        left_out: (B,), bool, truncated completions that are masked: neither they nor their tokens
            are counted.
        device: the device of the tensors.
    """
    prompts = generation.prompt_ids
    completions = generation.completion_ids
    rows = len(completions)
    stays = ~left_out.cpu()
    ones = [torch.ones(len(ids), dtype=torch.long) for ids in completions]
    logps = generation.sampling_logps
    steps = generation.policy_step
    made = (
        [torch.full((max(1, len(ids)),), steps) for ids in completions]
        if isinstance(steps, int)
        else steps
    )
    table = Scored(
        prompt_ids=padded(prompts, True, pad_token, torch.long),
        prompt_mask=padded([torch.ones(len(ids), dtype=torch.long) for ids in prompts], left=True),
        completion_ids=padded(completions, False, pad_token, torch.long),
        completion_mask=padded(ones) * stays.unsqueeze(1).long(),
        advantages=torch.zeros(rows),
        counted=stays.float(),
        signal=torch.ones(rows),
        policy_step=padded(made, dtype=torch.long),
        tool_mask=None if generation.tool_mask is None else padded(generation.tool_mask, fill=1),
        sampling_per_token_logps=None
        if logps is None
        else padded([x.float() for x in logps]).to(device),
        kept=generation.kept,
    )
    return table.on(device)
