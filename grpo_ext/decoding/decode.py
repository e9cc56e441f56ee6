"""The decoding loop: like `GenerationMixin._sample`, but only for rows that have not ended.

prefill: each distinct prompt once                         (U, P)
repeat each prompt's keys and values for all its rows      (B, P)
until all rows have ended: logits -> processors -> draw -> stopping criteria
    when an eighth of the rows have ended: remove them from tokens, mask and cache
    while the next token of every row is forced: skip the model, which processes those tokens
        together afterwards

Keys and values are cached in buffers that are written in place (`BufferedLayer`). transformers'
`DynamicLayer` copies all keys and values at every step to append one position. A buffer has spare
room, so that each step writes only its own position.
"""

from typing import Any, cast

import torch
from torch import LongTensor, Tensor
from torch.nn import functional
from torch.nn.functional import pad
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.common.head_input import contiguous_head_input
from grpo_ext.decoding.checks import ForcesTokens, SelectsRows, check_decoding, is_noisy
from grpo_ext.decoding.draw import draw_tokens

ENDED_SHARE = 1 / 8  # rows that have ended are removed once they are this share of the batch

SPARE = 64  # positions by which a full buffer grows


class BufferedLayer(DynamicLayer):
    """A `DynamicLayer` whose `keys` and `values` are views of longer buffers.

    Args:
        layer: the layer whose keys and values (b, heads, positions, dim) are copied.
        rows: (b',), the rows of `layer` to copy, in this order; a row may be repeated.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, layer: DynamicLayer, rows: Tensor):
        super().__init__()
        assert layer.keys is not None and layer.values is not None
        self.device = layer.device
        self.is_initialized = True
        rows = rows.to(layer.device)
        self._key_buffer = with_room(layer.keys[rows])
        self._value_buffer = with_room(layer.values[rows])
        self._set_length(layer.keys.size(-2))

    def _set_length(self, length: int) -> None:
        self.keys = self._key_buffer[:, :, :length]
        self.values = self._value_buffer[:, :, :length]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new positions, and return the keys and values of all positions.

        Args:
            key_states: (b, heads, new positions, dim), the keys to append.
            value_states: (b, heads, new positions, dim), the values to append.
            args: ignored, as in `DynamicLayer`.
            kwargs: ignored, as in `DynamicLayer`.
        """
        start = self.keys.size(-2)
        num_new = key_states.size(-2)
        end = start + num_new
        if end > self._key_buffer.size(-2):
            self._key_buffer = with_room(self.keys, num_new)
            self._value_buffer = with_room(self.values, num_new)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self._set_length(end)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows `indices` (b',), in this order, and free the memory of the others."""
        length = self.keys.size(-2)
        indices = indices.to(self.device)
        self._key_buffer = self._key_buffer[indices]
        self._value_buffer = self._value_buffer[indices]
        self._set_length(length)


def with_room(states: Tensor, positions: int = 0) -> Tensor:
    """Copy `states`, with zeros appended for `positions` + `SPARE` more positions."""
    return pad(states, (0, 0, 0, positions + SPARE))


def expand(cache: DynamicCache, rows: Tensor) -> None:
    """Select rows of a cache in place, and replace its layers with `BufferedLayer`s.

    Empty layers keep their class, and so do sliding-window layers, which do not grow beyond their
    window.

    Args:
        cache: the cache to change.
        rows: (b,), the rows to keep, in this order; a row may be repeated.
    """
    for i, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer)  # `has_selectable_rows` has checked it
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[i] = BufferedLayer(layer, rows)
        else:
            layer.batch_select_indices(rows)


class DecodeBatch:
    """The rows that are being decoded, and the tokens of the rows that have left.

    Args:
        input_ids: (B, P), the left-padded prompts.
        max_length: the maximum length of prompt and completion together.
        pad: the token that fills a row after its end.
        inputs: the cache, and optionally `attention_mask` (B, P) and `position_ids` (B or 1, P), by
            name.
    """

    def __init__(self, input_ids: Tensor, max_length: int, pad: int, inputs: dict[str, Any]):
        batch, width = input_ids.shape
        room = max_length - width
        self.length = width
        self.pad = pad
        self.cache = inputs[CACHE_INPUT]
        self._num_read = width  # number of positions that the model has processed
        self._ids = functional.pad(input_ids, (0, room), value=pad)  # (b, max_length)
        self._mask = inputs.get("attention_mask")
        if self._mask is not None:
            self._mask = functional.pad(self._mask, (0, room), value=1)  # (b, max_length)
        self._positions = inputs.get("position_ids")
        if self._positions is not None:
            self._positions = self._positions[:, -1:].expand(batch, 1)  # (b, 1)
        # the index of each row in the original batch, (b,)
        self._rows = torch.arange(batch, device=input_ids.device)
        # indices of rows that have left, (n,), and their tokens, (n, P + t)
        self._left: list[tuple[Tensor, Tensor]] = []

    @property
    def ids(self) -> LongTensor:
        """The prompts and the tokens so far, (b, P + t), of the rows that are being decoded."""
        return cast(LongTensor, self._ids[:, : self.length])

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, tokens: Tensor) -> None:
        """Append to each row its entry in `tokens` (b,)."""
        self._ids[:, self.length] = tokens
        self.length += 1
        if self._positions is not None:
            self._positions = self._positions + 1

    def next_inputs(self) -> dict[str, Any]:
        """Return the model inputs for the next forward pass, by name.

        The tokens are those that are not yet in the cache: usually one for each row, and more after
        tokens were forced. The next call returns only tokens that have been appended since.
        """
        inputs = {
            "input_ids": self._ids[:, self._num_read : self.length],
            CACHE_INPUT: self.cache,
            "attention_mask": None,
        }
        if self._mask is not None:
            inputs["attention_mask"] = self._mask[:, : self.length]
        if self._positions is not None:
            first = self._num_read - self.length + 1  # relative to the last token
            offsets = torch.arange(first, 1, device=self._ids.device)
            inputs["position_ids"] = self._positions + offsets
        self._num_read = self.length
        return inputs

    def keep(self, rows: Tensor, leaving: Tensor) -> None:
        """Continue with some of the rows, and store the tokens of the others for `all_ids`.

        Together, `rows` and `leaving` must contain each row of the current batch once; otherwise,
        `all_ids` fails or returns wrong rows.

        Args:
            rows: (b',), the indices of the rows that continue.
            leaving: (n,), the indices of the rows that leave.
        """
        left_rows = self._rows[leaving]
        left_ids = self.ids[leaving]  # (n, P + t)
        self._left.append((left_rows, left_ids))
        self._rows = self._rows[rows]
        self._ids = self._ids[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]
        if self._positions is not None:
            self._positions = self._positions[rows]
        self.cache.batch_select_indices(rows)

    def all_ids(self) -> Tensor:
        """Return the prompts and completions of all rows, (B, P + T), in their original order.

        Completions are padded at the end.
        """
        parts = [*self._left, (self._rows, self.ids)]
        batch = sum(len(rows) for rows, _ in parts)  # B
        all_ids = self._ids.new_full((batch, self.length), self.pad)
        for rows, ids in parts:
            all_ids[rows, : ids.size(1)] = ids
        return all_ids


def decode(
    model: PreTrainedModel,
    input_ids: LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Tensor:
    """Sample or decode greedily, as a `custom_generate` function of transformers' `generate`.

    Args:
        model: the model, called with `inputs` and the tokens. Call `check_model` first, because
            this function does not check the model.
        input_ids: (B, P), the left-padded prompts.
        logits_processor: the logits processors; one that keeps state per row must be a
            `SelectsRows`. While a `ForcesTokens` forces the next token of every row, the model is
            not called, and the processors receive the logits of an earlier step.
        stopping_criteria: the stopping criteria; if none has an end token, every row continues
            until all rows have ended.
        generation_config: the generation config.
        inputs: other model inputs, by name.

    Returns:
        The prompts and completions (B, P + T), padded after the end of each row, like the result of
        `GenerationMixin._sample`.

    Raises:
        NotSupported: if only transformers can decode the call. This is checked before anything is
            computed.
        ValueError: on a CPU, if the scores to sample from are NaN or leave no token.
    """
    check_decoding(
        model, input_ids, logits_processor, stopping_criteria, generation_config, **inputs
    )
    constant_inputs = {
        name: inputs[name] for name in ("use_cache", "logits_to_keep") if name in inputs
    }
    selecting = [p for p in logits_processor if isinstance(p, SelectsRows)]
    forcing = [p for p in logits_processor if isinstance(p, ForcesTokens)]
    # without an end token, no row is padded: like transformers, decode all rows until the last ends
    rows_end = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    pad = generation_config.pad_token_id
    logits = prefill(model, input_ids, inputs)  # (B, V)
    batch = DecodeBatch(input_ids, generation_config.max_length, pad, inputs)
    ended = input_ids.new_zeros(len(batch), dtype=torch.bool)
    while True:
        scores = logits_processor(batch.ids, logits)
        tokens = draw_tokens(scores, generation_config.do_sample)
        if rows_end:
            tokens = tokens.masked_fill(ended, pad)
        batch.append(tokens)
        ended = ended | stopping_criteria(batch.ids, None)
        num_ended = int(ended.sum())
        if num_ended == len(batch):
            return batch.all_ids()
        if rows_end and num_ended >= ENDED_SHARE * len(batch):
            rows = torch.where(~ended)[0]
            leaving = torch.where(ended)[0]
            for processor in selecting:
                processor.select_rows(batch.ids, rows)
            batch.keep(rows, leaving)
            ended = ended[rows]
            logits = logits[rows]
        if any(processor.gives_all() for processor in forcing):
            continue
        outputs = model(**batch.next_inputs(), **constant_inputs, return_dict=True)
        logits = last_logits(outputs, input_ids.device)


def prefill(model: PreTrainedModel, input_ids: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Prefill each distinct prompt once, and copy its logits and cache to all rows with it.

    If dropout or router jitter could give equal rows different outputs, every row is prefilled.

    Args:
        model: the model, which is called once.
        input_ids: (B, P), the left-padded prompts.
        inputs: other model inputs, by name; the cache among them is filled with B rows.

    Returns:
        The logits (B, V) for the first token of each completion, in float32.
    """
    mask = inputs.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(input_ids)
    unique, prompt_of_row = equal_prompts(input_ids, mask)  # (U,), (B,)
    batch = len(input_ids)
    if len(unique) == batch or is_noisy(model):
        unique = torch.arange(batch, device=input_ids.device)
        prompt_of_row = unique
    unique_inputs = dict(inputs)
    for name in ("attention_mask", "position_ids"):
        tensor = inputs.get(name)
        if tensor is not None and len(tensor) == batch:
            unique_inputs[name] = tensor[unique]
    with contiguous_head_input(model):
        outputs = model(input_ids=input_ids[unique], **unique_inputs, return_dict=True)
    expand(inputs[CACHE_INPUT], prompt_of_row)
    return last_logits(outputs, input_ids.device)[prompt_of_row]


def last_logits(outputs: CausalLMOutputWithPast, device: torch.device) -> Tensor:
    """Return a float32 copy, on `device`, of the logits (b, V) at the last position.

    A copy lets the logits of whole prompts be freed after the prefill.
    """
    assert outputs.logits is not None
    return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=device)
