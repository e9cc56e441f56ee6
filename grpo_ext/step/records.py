"""The records of an optimizer step: `Generation`, `Scored`, `MicroBatch`, `LossOutput`.

Records are immutable: a stage returns a new record with more fields set.

In shapes, B is the number of completions in a batch, P the number of prompt tokens and T the number
of completion tokens. Prompts are padded on the left, completions on the right.

`table_of` builds a table of completions from a generation, and `join` concatenates tables. `Ranks`
holds this process's rank, and the collectives that the stages of a step use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.policy import Stat, StepCounts

# When tables are concatenated, a table without one of these fields gets this value for it.
MISSING = {
    "tool_mask": 1.0,
    "sampling_per_token_logps": torch.nan,
    "old_per_token_logps": torch.nan,
}
# The padding value of a field; 0 for all other fields.
PADDING = {"importance_sampling_ratio": 1.0}
CPU = torch.device("cpu")

PROMPT = ("prompt_ids", "prompt_mask")  # fields of `Scored` with one column per prompt token


@dataclass(frozen=True)
class Generation:
    """This rank's prompts and completions, in the same order, as a sampler returns them."""

    prompt_ids: list[list[int]]  #: B lists of tokens
    completion_ids: list[list[int]]  #: B lists of tokens, including the end token; may be empty
    #: the optimizer step whose weights sampled the completions, or one step for each token
    policy_step: int | list[list[int]]
    #: the sampler's log-prob of each token; NaN where it returned none, `None` if it returned none
    #: at all
    sampling_logps: list[Tensor] | None = None
    #: the tokens that truncated sampling (such as top-k) kept at each position; `None` if the
    #: sampler does not return them
    kept: list[KeptSet] | None = None
    #: 1 for tokens of the policy, 0 for tokens of an environment; `None` if all are the policy's
    tool_mask: list[list[int]] | None = None
    #: the conversations after the prompts, if there are several turns
    messages: list[list[dict[str, str]]] | None = None
    #: whether each completion ended at the token limit, regardless of its last token
    cut: list[bool] | None = None
    #: additional columns for rewards, from an environment or `rollout_func`
    extra_fields: dict[str, Any] = field(default_factory=dict)
    #: the rows of the dataset; `None` if they are the rows of the last request
    rows: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Scored:
    """A table of completions, one per row, with everything needed to compute their loss.

    Optional fields are `None` until a later stage sets them.
    """

    prompt_ids: Tensor  #: (B, P)
    prompt_mask: Tensor  #: (B, P)
    completion_ids: Tensor  #: (B, T)
    #: (B, T), 0 for padding and for all tokens of a completion that is left out
    completion_mask: Tensor
    advantages: Tensor  #: (B,) or (B, T)
    #: (B,), 0 for completions that are not counted (masked truncated ones, and those left out)
    counted: Tensor
    signal: Tensor  #: (B,), 0 where no completion of the group has an advantage
    policy_step: Tensor  #: (B, T), the optimizer step whose weights sampled the token
    right: Tensor | None = None  #: (B,), 1 for correct completions, by the outcome reward
    tool_mask: Tensor | None = None  #: (B, T), 0 for tokens that the policy did not write
    #: (B, T), the sampler's log-probs; NaN where it returned none
    sampling_per_token_logps: Tensor | None = None
    #: (B, T), log-probs under the old policy, for the denominator of ratios; `None` or NaN if the
    #: old policy is the one that takes the step
    old_per_token_logps: Tensor | None = None
    ref_per_token_logps: Tensor | None = None  #: (B, T), the reference's log-probs
    #: (B, T) or (B, 1), the old policy's probability as scored by the trainer, divided by the
    #: sampler's
    importance_sampling_ratio: Tensor | None = None
    kept: list[KeptSet] | None = None  #: for each row, the tokens that truncated sampling kept
    #: additional model inputs, such as images; rows of a table with them cannot be selected
    model_inputs: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def loss_mask(self) -> Tensor:
        """The loss mask (B, T): 1 for counted tokens that the policy wrote."""
        if self.tool_mask is None:
            return self.completion_mask
        return self.completion_mask * self.tool_mask

    @property
    def right_mask(self) -> Tensor:
        """The loss mask (B, T) of correct completions only; all 0 if `right` is `None`."""
        if self.right is None:
            return torch.zeros_like(self.loss_mask)
        return self.loss_mask * self.right.unsqueeze(1)

    @property
    def input_ids(self) -> Tensor:
        """The tokens of prompts and completions, (B, P + T)."""
        return torch.cat([self.prompt_ids, self.completion_ids], dim=1)

    @property
    def attention_mask(self) -> Tensor:
        """The mask of prompts and completions, (B, P + T)."""
        return torch.cat([self.prompt_mask, self.completion_mask], dim=1)

    @property
    def width(self) -> int:
        """The number of completion columns, T."""
        return self.completion_ids.size(1)

    @property
    def row_advantages(self) -> Tensor:
        """The advantages as (B, 1) or (B, T)."""
        if self.advantages.dim() == 1:
            return self.advantages.unsqueeze(1)
        return self.advantages

    def take(self, rows: Tensor, most: int | None = None, trim: bool = True) -> Scored:
        """Return the given rows, by default trimmed to their longest prompt and completion.

        Args:
            rows: (b,), the row indices, in the order of the result.
            most: the maximum number of completion tokens to keep; `None` keeps all.
            trim: whether to drop columns that are masked in all of these rows. At least one column
                of the prompt and one of the completion remain.

        Raises:
            ValueError: if the table has model inputs.
        """
        if self.model_inputs:
            raise ValueError(
                "cannot select rows of a batch that has additional model inputs "
                f"({', '.join(self.model_inputs)}), because these inputs do not necessarily have "
                "one entry per row."
            )
        rows = rows.to(self.completion_ids.device)
        prompt_width = self.prompt_ids.size(1)
        width = self.width
        if trim:
            prompt_lengths = self.prompt_mask[rows].sum(1)  # (b,)
            lengths = self.completion_mask[rows].sum(1)  # (b,)
            prompt_width = max(1, int(prompt_lengths.max()))
            width = max(1, int(lengths.max()))
        if most is not None:
            width = min(width, most)
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            column = getattr(self, name)
            if column is None:
                continue
            if isinstance(column, list):
                columns[name] = [column[i] for i in rows.tolist()]
            elif name in PROMPT:
                padding = column.size(1) - prompt_width
                columns[name] = column[rows][:, padding:]
            elif self.has_tokens(column):
                columns[name] = column[rows][:, :width]
            else:
                columns[name] = column[rows]
        return replace(self, **columns)

    def has_tokens(self, value: Tensor) -> bool:
        """Return whether `value`, a field of this table, has one column per completion token.

        With T = 1, this is also true of a field (B, 1) with one value per row.
        """
        return value.dim() == 2 and value.size(1) == self.width > 0

    def on(self, device: torch.device | str) -> Scored:
        """Return the table with its tensors on `device`; kept sets stay in host memory."""
        columns: dict[str, Any] = {}
        for name in COLUMNS:
            column = getattr(self, name)
            if isinstance(column, Tensor):
                columns[name] = column.to(device)
        inputs = dict(self.model_inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                inputs[name] = value.to(device)
        return replace(self, **columns, model_inputs=inputs)

    def without(self, left_out: Tensor) -> Scored:
        """Return a copy in which some rows count neither in the loss nor in its divisors.

        `left_out` is a bool mask (B,) of these rows.
        """
        stays = ~left_out  # (B,)
        by_token = stays.unsqueeze(1)  # (B, 1)
        token_mask = by_token.to(self.completion_mask.dtype)
        advantages = self.row_advantages * by_token  # (B, 1) or (B, T)
        return replace(
            self,
            completion_mask=self.completion_mask * token_mask,
            advantages=advantages.view_as(self.advantages),
            counted=self.counted * stays,
            signal=self.signal * stays,
        )


@dataclass(frozen=True)
class MicroBatch:
    """Completions that run forward and backward together, with the counts of their step."""

    rows: Scored
    counts: StepCounts  #: the counts of the whole step
    useful: StepCounts  #: the counts of the groups with signal in the whole step
    last: bool = True  #: whether it is the step's last micro-batch on this rank
    #: whether no row can change the gradient; a filler only makes up the number of micro-batches
    filler: bool = False


@dataclass(frozen=True)
class Scores:
    """The log-probs of completions under a model, and other outputs of the same forward pass."""

    logps: Tensor  #: (B, T), the log-prob of each completion token; 0 for padding
    entropies: Tensor | None = None  #: (B, T), the entropy at each position
    aux_loss: Tensor | None = None  #: the MoE load-balancing loss, a scalar, if computed
    #: for each row, the kept tokens that the pass used; `None` without truncation
    kept: list[KeptSet] | None = None


@dataclass(frozen=True)
class LossOutput:
    """A micro-batch's share of the step's loss, with gradient, and the metrics to log for it."""

    loss: Tensor
    stats: dict[str, Stat]


COLUMNS = tuple(f.name for f in fields(Scored) if f.name != "model_inputs")


def join(parts: Sequence[Scored]) -> Scored:
    """Concatenate tables along the batch dimension, padding prompts and completions to the longest.

    A single table is returned unchanged.

    Raises:
        ValueError: if any of several tables has model inputs, or if a field that is not in
            `MISSING` is set in some tables but not in others.
    """
    if len(parts) == 1:
        return parts[0]
    input_names = {name for part in parts for name in part.model_inputs}
    if input_names:
        raise ValueError(
            "cannot join batches that have additional model inputs "
            f"({', '.join(sorted(input_names))}), which this package does not concatenate."
        )
    columns = {name: _joined_column(name, parts) for name in COLUMNS}
    return Scored(**columns)


def _joined_column(name: str, parts: Sequence[Scored]) -> Any:
    """Concatenate one field of several tables, padded to the widest prompt and completion.

    The result is `None` if no table has the field. If only some tables have it, the others get its
    value in `MISSING`.

    Raises:
        ValueError: if only some tables have the field, and it is not in `MISSING`.
    """
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    if any(column is None for column in columns) and name not in MISSING:
        raise ValueError(f"cannot join batches: some have the field {name}, others do not.")
    if any(isinstance(column, list) for column in columns):
        return list(chain.from_iterable(columns))
    prompt_width = max(part.prompt_ids.size(1) for part in parts)
    width = max(part.width for part in parts)
    # if a table has only one column, a value per row looks like a value per token
    by_token = True
    for part, column in zip(parts, columns, strict=True):
        if column is not None and not part.has_tokens(column):
            by_token = False
    widened = []
    for part, column in zip(parts, columns, strict=True):
        if column is None:
            shape = (len(part), part.width)
            column = torch.full(shape, MISSING[name], device=part.completion_ids.device)
        if name in PROMPT:
            padding = (prompt_width - column.size(1), 0)
            column = pad(column, padding)  # (B, P)
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

    The result has at least one column.

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
    generation: Generation,
    pad_token: int,
    left_out: Tensor,
    device: torch.device | str,
) -> Scored:
    """Convert a generation to a table in which every advantage is 0 and every `signal` is 1.

    Args:
        generation: the generation of this rank.
        pad_token: the id of the token used as padding.
        left_out: a bool mask (B,) of the completions to leave out of the loss and its counts.
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
        float_logps = [logps.float() for logps in generation.sampling_logps]
        sampling_logps = padded(float_logps).to(device)
    tool_mask = None
    if generation.tool_mask is not None:
        tool_mask = padded(generation.tool_mask, fill=1)
    completion_mask = padded(completion_ones)  # (B, T)
    table = Scored(
        prompt_ids=padded(prompts, left=True, fill=pad_token, dtype=torch.long),
        prompt_mask=padded(prompt_ones, left=True),
        completion_ids=padded(completions, fill=pad_token, dtype=torch.long),
        completion_mask=completion_mask * stays.unsqueeze(1).long(),
        advantages=torch.zeros(num_rows),
        counted=stays.float(),
        signal=torch.ones(num_rows),
        policy_step=padded(policy_steps, dtype=torch.long),
        tool_mask=tool_mask,
        sampling_per_token_logps=sampling_logps,
        kept=generation.kept,
    )
    return table.on(device)


@dataclass(frozen=True)
class Ranks:
    """This process's rank and its collectives, which all ranks must call in the same order."""

    index: int = 0  # the rank of this process
    count: int = 1  # the number of processes
    device: torch.device = CPU  # the device of this process's tensors
    # concatenates equally shaped tensors from all ranks along their first dimension
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor
    # concatenates the lists of all ranks
    gather_objects: Callable[[list[Any]], list[Any]] = lambda items: items

    @property
    def float_type(self) -> torch.dtype:
        """float64, or float32 on an Apple GPU, which does not support float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        if self.count == 1:
            return values
        by_rank = self.gather(values.unsqueeze(0))  # (ranks, ...)
        return by_rank.sum(0)

    def any(self, condition: bool) -> bool:
        """Return whether `condition` is true on any rank."""
        flag = torch.tensor(float(condition), device=self.device)
        return bool(self.total(flag) > 0)

    def own_slice(self, rows: int) -> slice:
        """Return this rank's slice of `rows` rows; `rows` must be a multiple of `count`."""
        share = rows // self.count
        return slice(self.index * share, (self.index + 1) * share)
