"""Choose how completions are laid out for a forward pass."""

import inspect
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from peft import PeftModel
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

# The time of attention with a mask grows with the square of the row length: on a CPU, rows of 2,048
# tokens took 1.5 times as long as rows of 512.
MASKED_ROW_TOKENS = 512
# On a CPU, the mask of such a row costs little compared with the matrix multiplications of a layer
# of this width.
WIDE = 512
#: the attention of `seams.attention`, as registered with transformers
SDPA_IN_FP32 = "sdpa_in_fp32"
Kind = Literal["padded", "chunks", "packed"]


@dataclass(frozen=True)
class Layout:
    """The layout of completions in a forward pass; layouts change log-probs only by rounding."""

    kind: Kind = "chunks"
    reason: str = ""  # why `kind` differs from the requested one, or was chosen by "auto"
    trimmed: bool = True  # padding may be removed, because the model's positions do not count it
    # pass each token's position in its sequence: in half precision, rotary positions that count the
    # padding are rounded differently from the sampler's
    positions: bool = False
    shares: bool = True  # each distinct prompt runs once, in chunks or in a packed row with a mask
    by_cost: bool = False  # use packed rows or chunks, whichever runs fewer tokens
    in_row: bool = False  # a mask lets completions in a packed row share a copy of their prompt
    # the maximum length of a packed row of several sequences; `None` packs all into one row
    row_tokens: int | None = None
    max_tokens: int | None = None  # the maximum size of a chunk of several completions
    compact_head: bool = True  # compute logits only at the positions of completions
    # gradient checkpointing is on, so a pass with gradient keeps no keys and values
    recomputes: bool = False


def choose_layout(
    option: str,
    model: PreTrainedModel,
    *,
    one_call: bool,
    aux_loss: bool,
    recomputes: bool,
    max_tokens: int | None,
) -> Layout:
    """Choose the layout for a model.

    If chunks are requested or chosen but cannot be used, rows are padded; `reason` then says why.

    Args:
        option: the value of `layout`: "auto", "padded", "chunks" or "packed".
        model: the model, without its DDP or FSDP wrapper.
        one_call: whether every rank must call the model exactly once per micro-batch, as a sharded
            model requires.
        aux_loss: whether the MoE load-balancing loss is computed, which requires padded rows.
        recomputes: whether gradient checkpointing is on.
        max_tokens: the maximum number of tokens in a chunk of several completions; `None` for no
            limit.

    Raises:
        ValueError: if `option` is "packed", but the model does not support packed rows or
            `aux_loss` is on.
    """
    attention = attention_of(model)
    flash = "flash" in attention
    skips_masked = flash or attention == "flex_attention"
    unpackable = why_not_packed(model)
    if aux_loss:
        unpackable = "the MoE load-balancing loss needs padded rows"
    if option == "packed" and unpackable:
        refuse_packing(unpackable)
    hidden_size = getattr(model.config.get_text_config(), "hidden_size", 0)
    wide_on_cpu = model.device.type == "cpu" and hidden_size >= WIDE
    rotary = has_rotary_positions(model)
    padded = option == "padded"
    reason = ""
    kind: Kind = "chunks"
    if padded:
        kind = "padded"
    elif option == "packed":
        kind = "packed"
    if option == "auto" and skips_masked and unpackable is None:
        kind = "packed"
        reason = f"{attention} skips masked positions"
    elif option == "auto" and wide_on_cpu and unpackable is None and not one_call:
        kind = "packed"
        reason = f"layers {hidden_size} wide, on a CPU"
    elif not padded and (not rotary or aux_loss):
        kind = "padded"
        reason = str(unpackable)
    elif kind == "chunks" and one_call:
        kind = "padded"
        reason = "all ranks must call the model the same number of times"
    caches_all = caches_every_token(model)
    may_cut = option == "auto" and kind == "packed" and not one_call and caches_all
    by_cost = may_cut and (flash or not skips_masked)
    in_row = kind == "packed" and not flash and caches_all
    one_row = skips_masked or one_call
    return Layout(
        kind=kind,
        reason=reason,
        trimmed=rotary and not padded,
        positions=rotary and takes_positions(model),
        shares=caches_all and (kind == "chunks" or by_cost or in_row),
        by_cost=by_cost,
        in_row=in_row,
        row_tokens=None if one_row else MASKED_ROW_TOKENS,
        max_tokens=max_tokens,
        compact_head=not padded,
        recomputes=recomputes,
    )


def attention_of(model: PreTrainedModel) -> str:
    """Return the name of a model's attention implementation, as in transformers.

    If `attention_in_fp32` is set, the name is "sdpa", because the same masks apply.
    """
    name = str(model.config.get_text_config()._attn_implementation)
    return "sdpa" if name == SDPA_IN_FP32 else name


def has_rotary_positions(model: PreTrainedModel) -> bool:
    """Return whether the model has rotary positions, with which only token distances matter."""
    config = model.config.get_text_config()
    has_parameters = getattr(config, "rope_parameters", None) is not None
    return has_parameters or hasattr(config, "rope_theta")


def takes_positions(model: PreTrainedModel) -> bool:
    """Return whether the model accepts `position_ids`.

    The result is `False` for an adapter that learns a prompt, such as prompt tuning.
    """
    if _learns_prompt(model):
        return False
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    return "position_ids" in inspect.signature(type(inner).forward).parameters


def caches_every_token(model: PreTrainedModel) -> bool:
    """Return whether the model caches the keys and values of every token in every layer.

    The result is `False` for models with sliding windows or recurrent layers, and for adapters that
    learn a prompt.
    """
    if _learns_prompt(model):
        return False
    cache = DynamicCache(config=model.config.get_text_config())
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def why_not_packed(model: PreTrainedModel) -> str | None:
    """Return why a model does not support packed rows, or `None` if it does.

    Only its config and its adapter are checked; see `Probe` for a check of the log-probs.
    """
    if not has_rotary_positions(model):
        return "the model's positions count padding, as learned position embeddings do"
    if _learns_prompt(model):
        return "the adapter adds tokens before each prompt"
    cache = DynamicCache(config=model.config.get_text_config())
    recurrent = model._is_stateful
    for layer in cache.layers:
        is_linear = isinstance(layer, LinearAttentionCacheLayerMixin)
        if is_linear or not isinstance(layer, DynamicLayer):
            recurrent = True
    if recurrent:
        return "the model's recurrent layers would pass the state of one sequence to the next"
    return None


def _learns_prompt(model: torch.nn.Module) -> bool:
    """Return whether the model's active adapter learns a prompt, which adds tokens to the input."""
    return isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning


def refuse_packing(reason: str) -> NoReturn:
    """Raise a `ValueError` that states the reason and suggests `layout: chunks`."""
    raise ValueError(
        f"layout: completions cannot be packed into rows, because {reason}. Set `layout: chunks`."
    )
