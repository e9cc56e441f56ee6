"""How completions are laid out for a pass through a model, chosen by the model, its attention and
the ranks.
"""

from dataclasses import dataclass
from typing import Any, Literal

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

# With a mask, attention costs the square of the row length: on a CPU rows of 2,048 take 1.5 times
# as long as rows of 512.
MASKED_ROW_TOKENS = 512
Kind = Literal["padded", "chunks", "packed"]


@dataclass(frozen=True)
class Layout:
    """How completions are laid out for a pass; it does not change log-probs."""

    kind: Kind = "chunks"
    why: str = (
        ""  # the reason for a kind that is not the one that was asked for, or that was chosen
    )
    trimmed: bool = True  # padding may be cut, because the model's positions do not count it
    shares: bool = True  # each distinct prompt runs once, in chunks or in a packed row with a mask
    by_cost: bool = False  # packed rows or chunks, whichever runs fewer tokens
    row_tokens: int | None = (
        None  # the maximum length of a packed row of several sequences; `None`: one row for all
    )
    max_tokens: int | None = None  # the maximum size of a chunk of several completions
    compact_head: bool = True  # logits at the positions of completions only
    recomputes: bool = (
        False  # gradient checkpointing is on, so a pass with gradient keeps no keys and values
    )

    @property
    def in_row(self) -> bool:
        """Whether the completions of a prompt see the same copy of it in a packed row, by a
        mask.
        """
        return self.shares and self.kind == "packed" and not self.by_cost


def choose_layout(
    asked: str,
    model: Any,
    *,
    one_call: bool,
    aux_loss: bool,
    recomputes: bool,
    max_tokens: int | None,
) -> Layout:
    """Return the layout for a model.

    Args:
        asked: the option `layout`: "auto", "padded", "chunks" or "packed".
        model: without the wrappers of data parallel training.
        one_call: all ranks must call the model once a micro-batch, as sharded ones must.
        aux_loss: the loss on the balance of experts is on, which is taken over a rectangle.
        recomputes: gradient checkpointing is on.
        max_tokens: of a chunk.

    Raises:
        ValueError: for "packed" if the model cannot take packed rows.
    """
    attention = str(model.config.get_text_config()._attn_implementation)
    flash = "flash" in attention
    flex = attention == "flex_attention"
    reason = why_not_packed(model)
    if aux_loss:
        reason = "the loss on the balance of experts is taken over a rectangle"
    if asked == "packed" and reason:
        refuse_packing(reason)
    rotary = has_rotary_positions(model)
    padded = asked == "padded"
    why = ""
    kind: Kind = "chunks"
    if padded:
        kind = "padded"
    elif asked == "packed":
        kind = "packed"
    if asked == "auto" and (flash or flex) and reason is None:
        kind = "packed"
        why = f"{attention} skips what a token does not see"
    elif not padded and (not rotary or aux_loss):
        kind = "padded"
        why = str(reason)
    elif kind == "chunks" and one_call:
        kind = "padded"
        why = "sharded ranks call the model equally often"
    by_cost = asked == "auto" and flash and kind == "packed" and not one_call and keeps_all(model)
    may_share = kind == "chunks" or by_cost or (kind == "packed" and not flash)
    return Layout(
        kind=kind,
        why=why,
        trimmed=rotary and not padded,
        shares=keeps_all(model) and may_share,
        by_cost=by_cost,
        row_tokens=None if flash or flex or one_call else MASKED_ROW_TOKENS,
        max_tokens=max_tokens,
        compact_head=not padded,
        recomputes=recomputes,
    )


def has_rotary_positions(model: Any) -> bool:
    """Whether attention depends on distances between tokens, not on absolute positions."""
    config = model.config.get_text_config()
    return getattr(config, "rope_parameters", None) is not None or hasattr(config, "rope_theta")


def keeps_all(model: Any) -> bool:
    """Whether a model's cache holds the keys and values of every token, in every layer."""
    layers = DynamicCache(config=model.config.get_text_config()).layers
    return all(type(layer) is DynamicLayer for layer in layers) and not _adds_tokens(model)


def why_not_packed(model: Any) -> str | None:
    """Return why a model cannot take packed rows, as far as its config shows; `None` if it can."""
    if not has_rotary_positions(model):
        return "the positions of the model count padding, as learned ones do"
    if _adds_tokens(model):
        return "the adapter adds tokens before each prompt"
    layers = DynamicCache(config=model.config.get_text_config()).layers
    recurrent = any(
        isinstance(x, LinearAttentionCacheLayerMixin) or not isinstance(x, DynamicLayer)
        for x in layers
    )
    if recurrent or getattr(model, "_is_stateful", False):
        return "the model's recurrent layers would pass the state of one sequence to the next"
    return None


def _adds_tokens(model: Any) -> bool:
    """Whether the adapter learns a prompt."""
    return bool(getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False))


def refuse_packing(reason: str) -> None:
    """Raise a `ValueError` with the reason and the value to write instead."""
    raise ValueError(f"layout: packed cannot be used here: {reason}. Write layout: chunks.")
