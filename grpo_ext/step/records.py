"""The records that travel through an optimizer step: `Generation`, `Scored`, `MicroBatch`, `LossOutput`.

A record is never changed. A stage returns a new one with further fields set. B is completions, P prompt tokens and T
completion tokens of a batch. Prompts are padded on their left, completions on their right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from grpo_ext.objective.aggregate import Stat, StepCounts
from grpo_ext.objective.kept import KeptSet

PROMPT = ("prompt_ids", "prompt_mask")  # fields of `Scored` with a column a prompt token
# Where some of several tables lack a field, this stands in for what they do not have.
MISSING = {"tool_mask": 1.0, "sampling_per_token_logps": torch.nan, "old_per_token_logps": torch.nan}
PADDING = {"importance_sampling_ratio": 1.0}  # what stands where there is no token; 0 for all other fields


@dataclass(frozen=True)
class Generation:
    """Completions as a sampler gave them, those of this rank, in the order of their prompts.

    Args:
        prompt_ids: B lists of tokens.
        completion_ids: B lists of tokens, the end token included; a list may be empty.
        policy_step: the optimizer step whose weights sampled them.
        temperature: that they were sampled at.
        sampling_logps: the sampler's own log-prob of each token, NaN where it noted none; `None` where it noted none at all.
        kept: the tokens that truncated sampling kept at each position; `None` where the sampler does not tell.
        tool_mask: 1 for tokens that the policy wrote, 0 for those of an environment; `None`: the policy wrote all.
        messages: the conversations after the prompts, where there were several turns.
        cut: completions that ended for want of room, whatever their last token.
        extra_fields: further columns for the rewards, of an environment or a `rollout_func`.
    """

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    policy_step: int
    temperature: float
    sampling_logps: list[Tensor] | None = None
    kept: list[KeptSet] | None = None
    tool_mask: list[list[int]] | None = None
    messages: list[list[dict[str, str]]] | None = None
    cut: list[bool] | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """Completions with all that their loss reads, one a row. Fields that a later stage sets are `None` until then.

    Args:
        prompt_ids, prompt_mask: (B, P).
        completion_ids, completion_mask: (B, T); the mask is 0 for padding, and for all of a completion that is left out.
        advantages: (B,) or (B, T).
        counted: (B,), 0 for completions that no count sees: truncated ones that are masked, and those left out.
        signal: (B,), 0 where all rewards of the group are equal.
        temperature: (B,), that the completion was sampled at.
        policy_step: (B,), the optimizer step whose weights sampled it.
        tool_mask: (B, T), 0 for tokens that the policy did not write.
        sampling_per_token_logps: (B, T), the sampler's own; NaN where it noted none.
        old_per_token_logps: (B, T), of the policy that sampled; `None` or NaN: it is the policy that takes the step.
        ref_per_token_logps: (B, T), of the reference.
        importance_sampling_ratio: (B, T) or (B, 1), the policy that sampled as scored here over as the sampler had it.
        kept: for each row the tokens that sampling kept.
        extra: further fields with an entry a row, which travel along; one with `per_token` in its name has a column a
            completion token.
        model_inputs: what else the model is called with, such as images; such a table cannot be cut.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    advantages: Tensor
    counted: Tensor
    signal: Tensor
    temperature: Tensor
    policy_step: Tensor
    tool_mask: Tensor | None = None
    sampling_per_token_logps: Tensor | None = None
    old_per_token_logps: Tensor | None = None
    ref_per_token_logps: Tensor | None = None
    importance_sampling_ratio: Tensor | None = None
    kept: list[KeptSet] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    model_inputs: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def loss_mask(self) -> Tensor:
        """(B, T), 1 for tokens that the policy wrote and that count."""
        return self.completion_mask if self.tool_mask is None else self.completion_mask * self.tool_mask

    @property
    def input_ids(self) -> Tensor:
        """(B, P + T)."""
        return torch.cat([self.prompt_ids, self.completion_ids], dim=1)

    @property
    def attention_mask(self) -> Tensor:
        """(B, P + T)."""
        return torch.cat([self.prompt_mask, self.completion_mask], dim=1)

    @property
    def width(self) -> int:
        """T."""
        return self.completion_ids.size(1)

    @property
    def row_advantages(self) -> Tensor:
        """(B, 1) or (B, T)."""
        return self.advantages.unsqueeze(1) if self.advantages.dim() == 1 else self.advantages

    def take(self, rows: Tensor, most: int | None = None, trim: bool = True) -> Scored:
        """Some rows, in the order given, cut to their longest prompt and completion.

        Args:
            rows: (b,), indices.
            most: completion tokens to keep at most; `None` keeps all.
            trim: `False` keeps the padding.
        """
        if self.model_inputs:
            raise ValueError(f"Rows with {', '.join(self.model_inputs)} cannot be taken out of their batch.")
        rows = rows.to(self.completion_ids.device)
        prompt, width = self.prompt_ids.size(1), self.width
        if trim:
            prompt = max(1, int(self.prompt_mask[rows].sum(1).max()))
            width = max(1, int(self.completion_mask[rows].sum(1).max()))
        width = width if most is None else min(width, most)

        def cut(name: str, value: Any) -> Any:
            if value is None or isinstance(value, list):
                return value and [value[i] for i in rows.tolist()]
            if name in PROMPT:
                return value[rows][:, value.size(1) - prompt :]
            return value[rows][:, :width] if self.has_tokens(name, value) else value[rows]

        extra = {name: cut(name, value) for name, value in self.extra.items()}
        return replace(self, **{name: cut(name, getattr(self, name)) for name in COLUMNS}, extra=extra)

    def has_tokens(self, name: str, value: Tensor) -> bool:
        """Whether a field has a column a completion token."""
        named = name in COLUMNS or "per_token" in name
        return named and value.dim() == 2 and value.size(1) == self.width and value.size(1) > 0

    def on(self, device: torch.device | str) -> Scored:
        """The same with its tensors on another device; kept sets stay in host memory."""

        def moved(value: Any) -> Any:
            return value.to(device) if isinstance(value, Tensor) else value

        extra = {name: moved(value) for name, value in self.extra.items()}
        inputs = {name: moved(value) for name, value in self.model_inputs.items()}
        columns = {name: moved(getattr(self, name)) for name in COLUMNS}
        return replace(self, **columns, extra=extra, model_inputs=inputs)

    def without(self, left_out: Tensor) -> Scored:
        """The same with some rows (B,) taken out of the loss and of all that it is divided by."""
        stays = ~left_out
        return replace(
            self,
            completion_mask=self.completion_mask * stays.unsqueeze(1).to(self.completion_mask.dtype),
            advantages=(self.row_advantages * stays.unsqueeze(1)).view_as(self.advantages),
            counted=self.counted * stays,
            signal=self.signal * stays,
        )


@dataclass(frozen=True)
class MicroBatch:
    """Completions that run forward and backward together, with the counts of the optimizer step that they belong to.

    Args:
        rows: the completions.
        counts: of the whole step.
        useful: the same of groups with signal alone.
        last: whether it is the last one of the step on this rank.
        stands_in: whether no row can change the gradient: the rank has nothing else to run while others do.
    """

    rows: Scored
    counts: StepCounts
    useful: StepCounts
    last: bool = True
    stands_in: bool = False


@dataclass(frozen=True)
class Scores:
    """What one pass of a model says of completions.

    Args:
        logps: (B, T), of each completion token; 0 for padding.
        entropies: (B, T), of each position.
        aux_loss: the balance of experts, a scalar; `None` where it was not asked for.
        kept: for each row the tokens that sampling kept, as the pass used them; `None` without truncation.
    """

    logps: Tensor
    entropies: Tensor | None = None
    aux_loss: Tensor | None = None
    kept: list[KeptSet] | None = None


@dataclass(frozen=True)
class LossOutput:
    """A micro-batch's share of the step's loss, with gradient, and what it logs."""

    loss: Tensor
    stats: dict[str, Stat]


COLUMNS = tuple(f.name for f in fields(Scored) if f.name not in ("extra", "model_inputs"))


def join(parts: Sequence[Scored]) -> Scored:
    """One table of several, as wide as the widest.

    Raises:
        ValueError: if they hold different fields, or model inputs that cannot be joined.
    """
    if len(parts) == 1:
        return parts[0]
    odd = {name for part in parts for name in part.model_inputs}
    odd |= {name for part in parts for name in part.extra if any(name not in other.extra for other in parts)}
    if odd:
        raise ValueError(f"Completions cannot be joined: {', '.join(sorted(odd))} is not in all of them alike.")
    prompt, width = max(part.prompt_ids.size(1) for part in parts), max(part.width for part in parts)

    def joined(name: str, values: list[Any]) -> Any:
        if all(value is None for value in values):
            return None
        if any(value is None for value in values) and name not in MISSING:
            raise ValueError(f"Completions cannot be joined: some have {name}, others have none.")
        if any(isinstance(value, list) for value in values):
            return [item for value in values for item in value]
        # one part alone may be as wide as a value that has one column a row
        tokens = all(v is None or part.has_tokens(name, v) for part, v in zip(parts, values, strict=True))
        found = []
        for part, value in zip(parts, values, strict=True):
            if value is None:
                value = torch.full((len(part), part.width), MISSING[name], device=part.completion_ids.device)
            if name in PROMPT:
                value = pad(value, (prompt - value.size(1), 0))
            elif tokens:
                value = pad(value, (0, width - value.size(1)), value=PADDING.get(name, 0.0))
            found.append(value)
        return torch.cat(found)

    extra = {name: joined(name, [part.extra[name] for part in parts]) for name in parts[0].extra}
    return Scored(**{name: joined(name, [getattr(part, name) for part in parts]) for name in COLUMNS}, extra=extra)


def padded(lists: Sequence[Any], left: bool = False, fill: float = 0) -> Tensor:
    """Lists or tensors of different lengths as one tensor (B, longest), at least one wide."""
    tensors = [torch.as_tensor(item) for item in lists]
    table = pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side="left" if left else "right")
    return table if table.size(1) else table.new_full((len(tensors), 1), fill)


def ones_like(lists: Sequence[Sequence[Any]]) -> list[Tensor]:
    """A mask for `padded`: as many ones as each list has items."""
    return [torch.ones(len(item), dtype=torch.long) for item in lists]


def table_of(generation: Generation, pad_token: int, left_out: Tensor, device: torch.device | str) -> Scored:
    """A generation as a table; advantages are 0 until they are known.

    Args:
        generation: of this rank.
        pad_token: what stands where there is no token.
        left_out: (B,), bool, truncated completions that are masked: their tokens and they themselves do not count.
        device: of the tensors.
    """
    rows = len(generation.completion_ids)
    prompt_ids = padded([torch.tensor(ids, dtype=torch.long) for ids in generation.prompt_ids], True, pad_token)
    ids = padded([torch.tensor(ids, dtype=torch.long) for ids in generation.completion_ids], fill=pad_token)
    mask = padded(ones_like(generation.completion_ids))
    tool_mask, logps = generation.tool_mask, generation.sampling_logps
    table = Scored(
        prompt_ids=prompt_ids,
        prompt_mask=padded(ones_like(generation.prompt_ids), left=True),
        completion_ids=ids,
        completion_mask=mask * (~left_out.cpu()).unsqueeze(1).long(),
        advantages=torch.zeros(rows),
        counted=(~left_out.cpu()).float(),
        signal=torch.ones(rows),
        temperature=torch.full((rows,), float(generation.temperature)),
        policy_step=torch.full((rows,), generation.policy_step),
        tool_mask=None if tool_mask is None else padded([torch.tensor(m) for m in tool_mask], fill=1),
        sampling_per_token_logps=None if logps is None else padded([x.float() for x in logps]).to(device),
        kept=generation.kept,
    )
    return table.on(device)
