"""The decoding loop: as `GenerationMixin._sample`, but only for rows that have not ended.

prefill: each distinct prompt once                 (U, P)
repeat its keys and values for its rows            (B, P)
until all rows have ended: logits -> processors -> draw -> stopping criteria
    when an eighth of the rows has ended: remove them from tokens, mask and cache
    while the next token of every row is given: no logits; the model reads those tokens together
        afterwards
"""

from typing import Any, cast

import torch
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.decoding.cache import expand
from grpo_ext.decoding.checks import check_call, check_config, is_noisy

ENDED_SHARE = 1 / 8  # rows that have ended are removed when they are this share of the batch


class DecodeBatch:
    """The rows that are being decoded, and those that have left.

    `input_ids` (B, P) are left-padded prompts, `max_length` bounds prompt and completion together,
    and `pad` fills a row after its end. `inputs` are `past_key_values`, and optionally
    `attention_mask` (B, P) and `position_ids` (B or 1, P).
    """

    def __init__(self, input_ids: torch.Tensor, max_length: int, pad: int, inputs: dict[str, Any]):
        batch, width = input_ids.shape
        mask = inputs.get("attention_mask")
        positions = inputs.get("position_ids")
        self.length = width
        self.pad = pad
        self.cache = inputs["past_key_values"]
        self._read = width  # tokens a row that the model has read
        self._ids = functional.pad(input_ids, (0, max_length - width), value=pad)  # (b, max_length)
        # (b, max_length)
        self._mask = (
            None if mask is None else functional.pad(mask, (0, max_length - width), value=1)
        )
        # (b, 1)
        self._positions = None if positions is None else positions[:, -1:].expand(batch, 1)
        # (b,), the index of each row in the whole batch
        self._rows = torch.arange(batch, device=input_ids.device)
        self._left: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def ids(self) -> torch.LongTensor:
        """The prompts and tokens so far: (b, P + t)."""
        return cast(torch.LongTensor, self._ids[:, : self.length])

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, tokens: torch.Tensor) -> None:
        """Add one token (b,) to each row."""
        self._ids[:, self.length] = tokens
        self.length += 1
        if self._positions is not None:
            self._positions = self._positions + 1

    def next_inputs(self) -> dict[str, Any]:
        """Return the inputs of the next forward pass: the tokens not yet in the cache."""
        inputs = {
            "input_ids": self._ids[:, self._read : self.length],
            "past_key_values": self.cache,
        }
        inputs["attention_mask"] = None if self._mask is None else self._mask[:, : self.length]
        if self._positions is not None:
            inputs["position_ids"] = self._positions + torch.arange(
                self._read - self.length + 1, 1, device=self._ids.device
            )
        self._read = self.length
        return inputs

    def keep(self, rows: torch.Tensor, leaving: torch.Tensor) -> None:
        """Continue with only the rows `rows`; `rows` and `leaving` index into the current batch."""
        self._left.append((self._rows[leaving], self.ids[leaving]))
        self._rows = self._rows[rows]
        self._ids = self._ids[rows]
        self._mask = None if self._mask is None else self._mask[rows]
        self._positions = None if self._positions is None else self._positions[rows]
        self.cache.batch_select_indices(rows)

    def all_ids(self) -> torch.Tensor:
        """Return all rows in their original order: (B, P + T)."""
        parts = [*self._left, (self._rows, self.ids)]
        ids = self.ids.new_full((sum(len(rows) for rows, _ in parts), self.length), self.pad)
        for rows, part in parts:
            ids[rows, : part.size(1)] = part
        return ids


def decode(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> torch.Tensor:
    """Sample or decode greedily, as a `custom_generate` of transformers' `generate`.

    A logits processor with a state per row must have `select_rows(input_ids, rows)`. It gets the
    ids (b, P + t) before rows leave, and the rows that continue. One that forces tokens may have
    `gives_all()`: whether it forces the next token of every row, so that the logits do not matter;
    processors then see earlier logits.

    Returns prompts and completions (B, P + T), padded after the end of each row, as
    `GenerationMixin._sample` does. `NotSupported`, before anything is computed, if only the loop of
    transformers can decode this.
    """
    check_config(generation_config)
    check_call(logits_processor, stopping_criteria, inputs)
    constant = {name: inputs[name] for name in ("use_cache", "logits_to_keep") if name in inputs}
    # without an end token no row is padded: transformers decodes all rows until the last one ends
    ends = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    pad = generation_config.pad_token_id
    logits = prefill(model, input_ids, inputs)  # (B, V)
    batch = DecodeBatch(input_ids, generation_config.max_length, pad, inputs)
    ended = torch.zeros(len(batch), dtype=torch.bool, device=input_ids.device)
    while True:
        scores = logits_processor(batch.ids, logits)
        tokens = draw_tokens(scores, generation_config.do_sample)
        batch.append(tokens.masked_fill(ended, pad) if ends else tokens)
        ended = ended | stopping_criteria(batch.ids, None)
        num_ended = int(ended.sum())
        if num_ended == len(batch):
            return batch.all_ids()
        if ends and num_ended >= ENDED_SHARE * len(batch):
            rows = (~ended).nonzero().squeeze(1)
            for processor in logits_processor:
                if hasattr(processor, "select_rows"):
                    processor.select_rows(batch.ids, rows)
            batch.keep(rows, ended.nonzero().squeeze(1))
            ended = ended[rows]
            logits = logits[rows]
        if any(
            hasattr(processor, "gives_all") and processor.gives_all()
            for processor in logits_processor
        ):
            continue
        logits = _last_logits(
            model(**batch.next_inputs(), **constant, return_dict=True), input_ids.device
        )


def prefill(
    model: torch.nn.Module, input_ids: torch.Tensor, inputs: dict[str, Any]
) -> torch.Tensor:
    """Read each distinct prompt once into a cache with B rows; return the first logits (B, V).

    If noise (dropout) makes equal rows differ, every prompt is read.
    """
    mask = inputs.get("attention_mask")
    unique, which = equal_prompts(input_ids, torch.ones_like(input_ids) if mask is None else mask)
    if len(unique) == len(input_ids) or is_noisy(model):
        unique = which = torch.arange(len(input_ids), device=input_ids.device)
    given = dict(inputs)
    for name in ("attention_mask", "position_ids"):
        if (value := inputs.get(name)) is not None and len(value) == len(input_ids):
            given[name] = value[unique]
    outputs = model(input_ids=input_ids[unique], **given, return_dict=True)
    expand(inputs["past_key_values"], which)
    return _last_logits(outputs, input_ids.device)[which]


def _last_logits(outputs: Any, device: torch.device) -> torch.Tensor:
    """Return a float32 copy (b, V), so that the logits of whole prompts can be freed."""
    return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=device)


def draw_tokens(scores: torch.Tensor, do_sample: bool) -> torch.Tensor:
    """Return the next token (b,), int64, of each row: drawn, or without `do_sample` the likeliest.

    `scores` (b, V), float32, come from the logits processors. `ValueError` if those of a row are
    not a distribution (NaN, or no token left).
    """
    if not do_sample:
        return scores.argmax(dim=-1)
    probs = scores.softmax(dim=-1)  # (b, V)
    if probs.device.type != "cpu":
        return torch.multinomial(probs, num_samples=1).squeeze(1)
    # Inverse transform sampling in float64, with one variate per row: on a CPU `torch.multinomial`
    # draws an exponential variate for each token of the vocabulary.
    mass = probs.cumsum(dim=-1, dtype=torch.float64)  # (b, V)
    total = mass[:, -1:]
    if not bool((total > 0).all()):
        raise ValueError(
            "The scores of a row are not a distribution: they are NaN, or every token was removed."
        )
    point = torch.rand(total.shape, dtype=torch.float64) * total
    # rounding must not reach the total
    point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(mass, point, right=True).squeeze(1)
