"""Convert completions that TRL generates (for images, tools and `preset: trl`) to our records."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.advantage import has_signal
from grpo_ext.seams import trl as seam
from grpo_ext.step.groups import GroupShape
from grpo_ext.step.judge import AdvantageRule, EndRule, fill_unscored, group_outcomes
from grpo_ext.step.records import COLUMNS, Scored
from grpo_ext.trainer.judging import Judged
from grpo_ext.trainer.port import Trainer

# Model inputs that a table from TRL may contain in addition to the fields of `Scored`.
MODEL_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


def scored_by_trl(
    trainer: Trainer,
    rows: list[Any],
    table: dict[str, Any],
    ends: EndRule,
    rule: AdvantageRule,
    order: Sequence[int],
    failed: Tensor,
) -> Judged:
    """Convert the completions that TRL has just generated and scored to a `Judged` record.

    The rewards are TRL's, but the advantages are recomputed with `rule`. The lists and the table of
    the record hold this rank's completions; its other fields cover the completions of all ranks.

    Args:
        trainer: the trainer that generated the completions.
        rows: the rows of this rank, one per completion.
        table: the mapping that TRL returned.
        ends: the rule that decides which completions are truncated.
        rule: the rule that computes advantages from rewards.
        order: the indices of the rewards that judge groups, from `outcome_order`.
        failed: a bool mask (B of all ranks, R) of the completions on which a reward failed.

    Raises:
        ValueError: if `table` has a field that is unknown to this package.
    """
    b = len(rows)  # completions of this rank
    first = trainer.accelerator.process_index * b
    own_rows = slice(first, first + b)
    prompts, completions, raw_rewards, _ = seam.last_completions(
        trainer, b * trainer.accelerator.num_processes
    )
    rewards = fill_unscored(raw_rewards, rule.num_generations)
    ids = table["completion_ids"]
    mask = table["completion_mask"].bool()
    counted = mask.any(1)  # TRL has masked truncated completions if it was asked to
    cut = ends.truncated(
        unpadded(table["prompt_ids"], table["prompt_mask"].bool()), unpadded(ids, mask)
    )
    truncated = [
        is_cut or not is_counted for is_cut, is_counted in zip(cut, counted.tolist(), strict=True)
    ]
    outcomes = group_outcomes(raw_rewards, order, rule.num_generations, failed)
    ties = rule.ties(rewards, outcomes)
    advantages = rule.advantages(rewards, ties)
    signal = has_signal(advantages, rule.num_generations)[own_rows]
    fields = {
        "advantages": advantages[own_rows].float(),
        "counted": counted.float(),
        "signal": signal.float(),
        "right": (outcomes[own_rows] >= trainer.args.pass_threshold).float(),
        "policy_step": torch.full_like(ids[:b], trainer.state.global_step),
    }
    # the prompts of the dataset, without the text that an environment may have added
    row_prompts = [
        row.get("prompt", prompt) for row, prompt in zip(rows, prompts[own_rows], strict=True)
    ]
    written = mask & table["tool_mask"].bool() if "tool_mask" in table else mask
    sampled_lengths = (ids != seam.pad_token(trainer)).sum(1)
    return Judged(
        rows=rows,
        prompts=row_prompts,
        completions=completions[own_rows],
        truncated=truncated,
        table=as_scored({**table, **fields}),
        raw_rewards=raw_rewards,
        rewards=rewards,
        advantages=advantages,
        outcomes=outcomes,
        lengths=torch.where(counted, written.sum(1), sampled_lengths).tolist(),
        shape=GroupShape.equal(len(raw_rewards), rule.num_generations),
        failed=failed,
        ties=ties,
    )


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Return, for each row of `ids` (B, T), the tokens at which `mask` (B, T) is true."""
    return [row[is_token].tolist() for row, is_token in zip(ids, mask, strict=True)]


def as_scored(table: dict[str, Any]) -> Scored:
    """Convert a batch that TRL returned, a mapping of columns, to a `Scored` table.

    Old and reference log-probs and importance ratios are left out, because this package computes
    them itself.

    Raises:
        ValueError: if the batch has a field that is unknown to this package.
    """
    dropped = (
        "num_items_in_batch",
        "old_per_token_logps",
        "ref_per_token_logps",
        "importance_sampling_ratio",
    )
    columns = {}
    for name, column in table.items():
        if name not in dropped and column is not None:
            columns[name] = column
    unknown = columns.keys() - {*COLUMNS, *MODEL_INPUTS}
    if unknown:
        raise ValueError(
            f"TRL returned a batch with the fields {', '.join(sorted(unknown))}, which this "
            "package does not support. Use the versions of TRL and transformers that it requires, "
            "or another model."
        )
    images = {name: columns.pop(name) for name in MODEL_INPUTS if name in columns}
    return Scored(**columns, model_inputs=images)


def split_with_images(table: Scored, number: int) -> list[Scored]:
    """Shuffle a generation with images and split it into `number` slices, as TRL does."""
    columns = {name: getattr(table, name) for name in COLUMNS}
    tables = []
    for part in seam.split_with_images({**columns, **table.model_inputs}, number):
        images = {name: part.pop(name) for name in table.model_inputs}
        tables.append(Scored(**{name: part[name] for name in columns}, model_inputs=images))
    return tables
