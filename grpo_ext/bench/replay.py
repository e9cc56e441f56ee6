"""Record a generation and replay it in later runs, so that they train on the same completions."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from torch import Tensor

from grpo_ext.samplers.base import Request, Sampler, SamplerAbilities
from grpo_ext.step.records import Generation, Scored, join

T = TypeVar("T")


class Replay(Sampler):
    """Sampler that returns recorded completions for every request, whatever its prompts are.

    A request for n completions gets the first n.

    Args:
        recorded: the completions, at least as many as any request has prompts.
        original: the sampler that produced them; its abilities determine how they are scored.
    """

    name = "recorded completions"

    def __init__(self, recorded: Generation, original: Sampler):
        self.recorded = recorded
        self.abilities = SamplerAbilities(
            separate_engine=original.abilities.separate_engine,
            returns_kept_tokens=original.abilities.returns_kept_tokens,
            tokenizes_prompts=True,
            truncation_order=original.abilities.truncation_order,
        )

    def sample(self, request: Request) -> Generation:
        columns: dict[str, Any] = {}
        for field in fields(self.recorded):
            column = getattr(self.recorded, field.name)
            if isinstance(column, list):
                columns[field.name] = column[: len(request.prompts)]
        return replace(self.recorded, **columns, policy_step=request.policy_step)


def recorded_generation(slices: list[Scored]) -> Generation:
    """Concatenate the slices of a generation, remove the padding, and sort the rows by prompt."""
    table = join(slices)
    prompt_ids = token_ids(table.prompt_ids, table.prompt_mask)
    completion_ids = token_ids(table.completion_ids, table.completion_mask)
    order = sorted(range(len(table)), key=prompt_ids.__getitem__)
    sampling_logps = None
    if table.sampling_per_token_logps is not None:
        logps = unpadded(table.sampling_per_token_logps, table.completion_mask)
        sampling_logps = reordered(logps, order)
    return Generation(
        prompt_ids=reordered(prompt_ids, order),
        completion_ids=reordered(completion_ids, order),
        policy_step=0,
        sampling_logps=sampling_logps,
        kept=table.kept and reordered(table.kept, order),
    )


def reordered(column: list[T], order: list[int]) -> list[T]:
    return [column[i] for i in order]


def token_ids(rows: Tensor, mask: Tensor) -> list[list[int]]:
    """Return, for each row of `rows` (B, T), the token ids that `mask` (B, T) keeps."""
    return [ids.tolist() for ids in unpadded(rows, mask)]


def unpadded(rows: Tensor, mask: Tensor) -> list[Tensor]:
    """Return, for each row of `rows` (B, T), the entries that `mask` (B, T) keeps."""
    return [row[row_mask.bool()] for row, row_mask in zip(rows, mask, strict=True)]
