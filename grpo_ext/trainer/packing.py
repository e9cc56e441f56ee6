"""Padding-free scoring: the sequences of a micro-batch one after the other in a single row.

Each sequence has positions of its own, from which transformers makes the attention block-diagonal: FlashAttention gets the
sequences' bounds, other kinds of attention a mask.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

# With a mask, attention costs the square of a row's length: on a CPU rows of 2,048 take half as long again as rows of 512.
MASKED_ROW_TOKENS = 512


class PackedModel:
    """A model called as TRL calls it, with a padded batch; runs its tokens as one row and gives a padded batch back."""

    def __init__(self, model: Any):
        self.scored_model = model

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **kwargs: Any):
        real = attention_mask.bool()  # (B, L)
        positions = (attention_mask.cumsum(1) - 1)[real]  # (tokens,)
        begins = positions == 0
        targets = labels[real].masked_fill(begins, -100)  # no sequence is asked for the next one's first token
        packed = self.scored_model(
            input_ids=input_ids[real][None], position_ids=positions[None], labels=targets[None], **kwargs
        )

        def unpacked(values: torch.Tensor | None) -> torch.Tensor | None:
            if values is None:
                return None
            values = pad(values[0], (1, 0))  # (tokens,), of each token; nothing comes before the first
            return values.new_zeros(real.shape).masked_scatter(real, values)[:, 1:]  # (B, L - 1)

        return SimpleNamespace(log_probs=unpacked(packed.log_probs), entropy=unpacked(packed.entropy), aux_loss=None)


def takes_mask(model: Any) -> bool:
    """Whether a model's attention gets a mask of the row's length squared."""
    return "flash" not in str(model.config.get_text_config()._attn_implementation)


def check_packing(trainer: Any) -> None:
    """Refuse `packing: packed` where it would not give the same log-probs.

    Raises:
        ValueError: saying why, and what to write instead.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.may_cut:
        _refuse("it needs loss_normalization: step, length_batching: true and a model with rotary positions")
    if trainer.aux_loss_enabled:
        _refuse("the loss on the balance of experts is taken over the tokens of a rectangle")
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        _refuse("the adapter puts tokens of its own before each prompt")
    layers = DynamicCache(config=model.config.get_text_config()).layers
    recurrent = any(isinstance(x, LinearAttentionCacheLayerMixin) or not isinstance(x, DynamicLayer) for x in layers)
    if recurrent or getattr(model, "_is_stateful", False):
        _refuse("the model's recurrent layers would carry one sequence's state into the next")
    if not (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):  # those have no whole model yet
        check_separate(trainer, model)


@torch.no_grad()
def check_separate(trainer: Any, model: Any) -> None:
    """Score two sequences in one row and by themselves, and refuse a model that gives them other log-probs.

    Args:
        trainer: of the run.
        model: with TRL's fused head; all ranks call it equally often.

    Raises:
        ValueError: as above.
    """
    generator = torch.Generator().manual_seed(0)  # the run's own random state stays as it is
    size = trainer.model.config.get_text_config().vocab_size
    ids = torch.randint(size, (2, 16), generator=generator).to(trainer.accelerator.device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "fused_lm_head": True}
    training = model.training
    model.eval()
    try:
        with trainer.accelerator.autocast():
            alone = model(**batch).log_probs
            packed = PackedModel(model)(**batch).log_probs
    except (TypeError, NotImplementedError) as error:
        _refuse(f"the model does not take positions ({error})")
    finally:
        model.train(training)
    exact = trainer.model.dtype == torch.float32 and trainer.accelerator.mixed_precision == "no"
    apart = float((packed - alone).abs().max() / alone.std())
    if not apart <= (1e-4 if exact else 0.1):
        _refuse(
            f"the model lets sequences in one row see each other (log-probs differ by {apart:.2g} of their spread)"
        )


def _refuse(reason: str) -> None:
    raise ValueError(f"packing: packed cannot be used here: {reason}. Write packing: none.")
