"""Log-probs of a batch from fewer tokens: completions of like length run together, and a shared prompt runs once.

TRL runs a batch as one rectangle, as wide as its longest prompt and its longest completion, with the prompt of a group repeated
for each completion. `ChunkedScoring` runs each distinct prompt once, keeps the keys and values that the model made of it, and
runs the completions after them in chunks of like length. With `packing: packed` it runs rows without padding instead. Each
token sees what it saw before, so the log-probs and their gradients are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_ext.batching.cuts import CALL_TOKENS, deal_rows, length_chunks, packs
from grpo_ext.batching.rows import equal_prompts
from grpo_ext.trainer.logprobs import FusedHead, SamplingLogProbs, standing_in
from grpo_ext.trainer.packing import MASKED_ROW_TOKENS, PackedModel, check_packing, check_separate, takes_mask


@dataclass(frozen=True)
class Rows:
    """Prompts and completions to score.

    Args:
        input_ids: (B, P + T), prompts left padded, completions right padded.
        attention_mask: (B, P + T).
        width: T.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    width: int

    @property
    def prompt_mask(self) -> torch.Tensor:
        return self.attention_mask[:, : -self.width]  # (B, P)

    @property
    def completion_lengths(self) -> torch.Tensor:
        return self.attention_mask[:, -self.width :].sum(1)  # (B,)

    def take(self, rows: torch.Tensor) -> Rows:
        """Some of them, cut to their longest prompt and completion."""
        mask = self.attention_mask[rows]
        prompt = max(1, int(self.prompt_mask[rows].sum(1).max()))
        completion = max(1, int(self.completion_lengths[rows].max()))
        start = mask.size(1) - self.width
        columns = slice(start - prompt, start + completion)
        return Rows(self.input_ids[rows][:, columns], mask[:, columns], completion)


class ReadPrompts:
    """Distinct prompts that a model has read, all but their last token, which is run with the completions.

    Args:
        model: with TRL's fused head.
        rows: the batch.
    """

    def __init__(self, model: Any, rows: Rows):
        self.model = model
        end = rows.input_ids.size(1) - rows.width - 1
        first, self.prompt_of = equal_prompts(rows.input_ids[:, : end + 1], rows.prompt_mask)
        self.ids, self.mask = rows.input_ids[first][:, :end], rows.attention_mask[first][:, :end]  # (N, P - 1)
        self.end = end
        self.cache: DynamicCache | None = None

    @property
    def saved(self) -> int:
        """Tokens that need not run again."""
        return (len(self.prompt_of) - len(self.ids)) * self.end

    def read(self) -> bool:
        """Run them; whether the model kept their keys and values."""
        self.cache = DynamicCache()
        no_labels = torch.full_like(self.ids, -100)
        self.model(
            input_ids=self.ids,
            attention_mask=self.mask,
            labels=no_labels,
            past_key_values=self.cache,
            fused_lm_head=True,
        )
        return self.cache.get_seq_length() == self.end

    def continued(self, model: Any, rows: torch.Tensor) -> Continued:
        """The model as it goes on after the prompts of some rows."""
        number = self.prompt_of[rows.to(self.prompt_of.device)]
        layers = [(layer.keys[number], layer.values[number]) for layer in self.cache.layers]
        return Continued(model, DynamicCache(layers), self.mask[number])


class Continued:
    """A model that has read a prompt: called as TRL calls a model, with the tokens that follow."""

    def __init__(self, model: Any, cache: DynamicCache, mask: torch.Tensor):
        self.scored_model, self.cache, self.mask = model, cache, mask

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        seen = torch.cat([self.mask, attention_mask], dim=1)
        return self.scored_model(input_ids=input_ids, attention_mask=seen, past_key_values=self.cache, **kwargs)


class ChunkedScoring(SamplingLogProbs):
    """Mixin before `GRPOTrainer`. Reads `length_batching`, `max_tokens_per_micro_batch`, `shared_prefix` and `packing`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        exact = getattr(self.args, "loss_normalization", "step") == "step"
        # sharded ranks gather each layer together, so that all must call the model equally often
        alike = self.is_deepspeed_enabled or self.is_fsdp_enabled
        # and each chunk of a reentrant checkpoint runs a backward of its own, which data parallel ranks take for the last
        reentrant = (self.args.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
        alike |= bool(self.args.gradient_checkpointing and reentrant and self.accelerator.num_processes > 1)
        # learned positions count padding, so that cutting it would move every token
        self.may_cut = exact and has_rotary_positions(self.model) and getattr(self.args, "length_batching", True)
        self.max_tokens = getattr(self.args, "max_tokens_per_micro_batch", None)
        self.packed = getattr(self.args, "packing", "none") == "packed"
        if self.packed:
            check_packing(self)
            self._unchecked = self.is_deepspeed_enabled or self.is_fsdp_enabled
            self._row_tokens = MASKED_ROW_TOKENS if takes_mask(self.model) and not alike else None
        self.length_batching = self.may_cut and not alike and not self.packed
        self.shared_prefix = (
            self.length_batching and getattr(self.args, "shared_prefix", True) and keeps_all(self.model)
        )

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, *args, **kwargs
    ):
        special = any(
            value is not None and value is not False for name, value in kwargs.items() if name != "compute_entropy"
        )
        if self.packed and (args or special):
            raise ValueError("packing: packed takes text alone. Write packing: none.")
        if not (self.length_batching or self.packed) or args or special:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, *args, **kwargs
            )
        table, kept = Rows(input_ids, attention_mask, logits_to_keep), self._kept_rows
        order, parts, found = [], [], []
        for block in blocks_of(table, batch_size or len(input_ids)):
            rows = table.take(block)
            prompts = self._read_prompts(model, rows)
            for chunk in self._chunks(model, rows, prompts):
                self._kept_rows = None if kept is None else [kept[i] for i in block[chunk].tolist()]
                parts.append(self._score(outermost(model, first=not parts), rows, chunk, prompts, **kwargs))
                order.append(block[chunk])
                found += self._kept_rows or []
        back = torch.cat(order).argsort()
        self._kept_rows = [found[i] for i in back.tolist()] if found else None
        logps, entropies = (joined(x, logits_to_keep, back) for x in list(zip(*parts, strict=True))[:2])
        self._scored = logps, entropies, None
        return self._scored

    def _chunks(self, model: Any, rows: Rows, prompts: ReadPrompts | None) -> list[torch.Tensor]:
        """Rows that run together."""
        if not self.packed:
            per_row = 1 if prompts else rows.input_ids.size(1) - rows.width
            return length_chunks(rows.completion_lengths, per_row, max_tokens=self.max_tokens)
        if self._unchecked:
            check_separate(self, model)
            self._unchecked = False
        return packs(rows.attention_mask.sum(1), self._row_tokens)

    def _read_prompts(self, model: Any, rows: Rows) -> ReadPrompts | None:
        """The prompts, read, where that saves more than another call costs."""
        recomputes = torch.is_grad_enabled() and self.args.gradient_checkpointing  # keeps no keys and values
        if not self.shared_prefix or recomputes:
            return None
        prompts = ReadPrompts(outermost(model, first=False), rows)
        if prompts.saved <= CALL_TOKENS:
            return None
        with self.accelerator.autocast(), standing_in(FusedHead(self.temperature, compact=True)):
            if not prompts.read():  # recomputes its layers, or is of a kind that leaves the cache alone
                self.shared_prefix = False
                return None
        return prompts

    def _score(self, model: Any, rows: Rows, chunk: torch.Tensor, prompts: ReadPrompts | None, **kwargs: Any) -> tuple:
        part = rows.take(chunk)
        ids, mask = part.input_ids, part.attention_mask
        if prompts is not None:
            model = prompts.continued(model, chunk)
            ids, mask = (x[:, -(part.width + 1) :] for x in (ids, mask))  # from the last token of the prompt on
        model = PackedModel(model) if self.packed else model
        return super()._get_per_token_logps_and_entropies(model, ids, mask, part.width, None, **kwargs)


def how_it_trains(trainer: Any) -> str:
    """One line on what is done for speed; none of it changes the gradient."""
    if not (trainer.length_batching or trainer.packed):
        return "as TRL, one rectangle a micro-batch"
    done = [
        f"micro-batches by tokens, {'without padding' if trainer.packed else 'completions of like length together'}"
    ]
    if trainer.shared_prefix:
        done.append(
            "a group's prompt once" + (" (not in the backward pass)" if trainer.args.gradient_checkpointing else "")
        )
    if trainer.compact_head and trainer.accelerator.device.type == "cpu":
        done.append("logits of completions alone")
    if trainer.skips_dead_rows:
        done.append("no completion without gradient")
    return ", ".join(done)


def has_rotary_positions(model: Any) -> bool:
    """Whether a token sees how far others are rather than where it stands."""
    config = model.config.get_text_config()
    return getattr(config, "rope_parameters", None) is not None or hasattr(config, "rope_theta")


def keeps_all(model: Any) -> bool:
    """Whether a model's cache holds the keys and values of every token, in every layer."""
    layers = DynamicCache(config=model.config.get_text_config()).layers
    learned = getattr(model, "active_peft_config", None)  # prompt learning puts tokens of its own before the prompt
    return all(type(layer) is DynamicLayer for layer in layers) and not getattr(learned, "is_prompt_learning", False)


def outermost(model: Any, first: bool) -> Any:
    """The model to call: data parallel ranks meet in the wrapper, once a batch however many chunks each has."""
    return model.module if isinstance(model, DistributedDataParallel) and not first else model


def blocks_of(table: Rows, batch_size: int) -> list[torch.Tensor]:
    """The rows in blocks that take no more memory than `batch_size` rows do."""
    num = len(table.input_ids)
    if num <= batch_size:
        return [torch.arange(num)]
    _, prompts = equal_prompts(table.input_ids[:, : -table.width], table.prompt_mask)
    everything = torch.ones(num, dtype=torch.bool)
    return deal_rows(prompts, table.prompt_mask.sum(1), table.completion_lengths, everything, -(-num // batch_size))


def joined(parts: tuple[torch.Tensor | None, ...], width: int, back: torch.Tensor) -> torch.Tensor | None:
    """One tensor (B, T) of chunks (b, t), its rows in the batch's order."""
    if parts[0] is None:
        return None
    return torch.cat([pad(part, (0, width - part.size(1))) for part in parts])[back]
