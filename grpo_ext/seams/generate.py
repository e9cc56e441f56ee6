"""Run transformers' `generate` with our decoding loop, and record how it samples."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.utils import logging

from grpo_ext.common.stop_strings import StopStrings
from grpo_ext.decoding.checks import (
    NotSupported,
    base_model,
    check_config,
    check_decoding,
    check_model,
)
from grpo_ext.decoding.decode import decode
from grpo_ext.decoding.play import EpisodeEnds, Player
from grpo_ext.decoding.stop import StopStringEnds
from grpo_ext.objective.recorder import Recorder

logger = logging.get_logger(__name__)
ARGUMENTS = {
    "input_ids",
    "attention_mask",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
}


@contextmanager
def replaced(owner: object, **attributes: Any) -> Iterator[None]:
    """Context manager that sets attributes of a module or an object, and restores them on exit.

    The attributes are set in the owner's `__dict__`. On exit, those that were not there before are
    deleted.
    """
    namespace = vars(owner)
    originals = {name: namespace[name] for name in attributes if name in namespace}
    namespace.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del namespace[name]
        namespace.update(originals)


@contextmanager
def fast_generation(model: torch.nn.Module) -> Iterator[None]:
    """Context manager that makes the model's `generate` decode with our fast loop.

    The loop prefills each distinct prompt only once, and removes rows that have ended from the
    batch. Apart from rounding, neither the distribution of the completions nor the result of greedy
    decoding changes. If the loop does not support a call, transformers decodes instead; a warning
    says why, once for each reason.

    Args:
        model: a transformers model, with or without PEFT adapters.
    """
    inner: Any = base_model(model)
    original_generate = inner.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        try:
            unsupported = ", ".join(sorted(set(kwargs) - ARGUMENTS))
            if args or unsupported:
                names = unsupported or "positional arguments"
                raise NotSupported(f"some arguments of `generate` are not supported ({names})")
            check_model(inner)
            return original_generate(**kwargs, custom_generate=decode)
        except NotSupported as reason:
            logger.warning_once(
                f"fast_generate does not support this call: {reason}. Therefore, transformers "
                "generates with its own, slower decoding loop."
            )
        return original_generate(*args, **kwargs)

    with replaced(inner, generate=generate):
        yield


def check_fast_generation(model: torch.nn.Module, config: GenerationConfig) -> None:
    """Check that the fast loop can decode with a model and a config, without generating.

    transformers prepares a `generate` call for a short prompt, and stops before the model runs. If
    the model has its own `generate`, which might run the model, only the model's properties and
    `config` are checked.

    Args:
        model: a transformers model, with or without PEFT adapters.
        config: the generation config.

    Raises:
        NotSupported: if the fast loop cannot decode.
    """
    inner: Any = base_model(model)
    check_model(inner)
    if getattr(inner.generate, "__func__", None) is not GenerationMixin.generate:
        check_config(config)
        return
    prompt = torch.zeros(1, 2, dtype=torch.long, device=inner.device)
    inner.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=without_stop_strings(config),
        custom_generate=check_decoding,
    )


@contextmanager
def watching(
    model: torch.nn.Module,
    recorder: Recorder | None,
    player: Player | None = None,
    stops: StopStrings | None = None,
) -> Iterator[None]:
    """Context manager that attaches a recorder, a player and stop strings to a model's `generate`.

    Args:
        model: a transformers model, with or without PEFT adapters.
        recorder: records the tokens that all other processors keep, and the log-probs of the drawn
            tokens; `None` records nothing.
        player: plays the episode of each row; `None` if no episodes are played.
        stops: finds the stop strings that end a completion if no episodes are played; `None` if
            there are none. The stop strings in the generation config are ignored.
    """
    inner: Any = base_model(model)
    original_processors = inner._get_logits_processor
    original_criteria = inner._get_stopping_criteria

    def get_processors(*args: Any, **kwargs: Any) -> LogitsProcessorList:
        processors = original_processors(*args, **kwargs)
        if recorder is not None:
            recorder.check(processors)
        if player is not None:
            processors.append(player)
        if recorder is not None:
            processors.append(recorder)
        return processors

    def get_criteria(
        generation_config: GenerationConfig, *args: Any, **kwargs: Any
    ) -> StoppingCriteriaList:
        criteria = original_criteria(without_stop_strings(generation_config), *args, **kwargs)
        if stops is not None:
            criteria.append(StopStringEnds(stops))
        if player is None:
            return criteria
        end_tokens = [c for c in criteria if isinstance(c, EosTokenCriteria)]
        others = [c for c in criteria if not isinstance(c, EosTokenCriteria)]
        episode_ends = EpisodeEnds(player, end_tokens[0].eos_token_id)
        return StoppingCriteriaList([*others, episode_ends])

    with replaced(inner, _get_logits_processor=get_processors, _get_stopping_criteria=get_criteria):
        yield


def without_stop_strings(config: GenerationConfig) -> GenerationConfig:
    """Return a copy of a config with its stop strings removed.

    To handle stop strings, `generate` would need a tokenizer. `StopStringEnds` and episodes find
    them instead.
    """
    config = copy.copy(config)
    config.stop_strings = None
    return config


def generate_batch(
    model: PreTrainedModel,
    config: GenerationConfig,
    prompt_ids: list[list[int]],
) -> list[list[int]]:
    """Generate a completion for each prompt of a batch, and return the B lists of token ids.

    Each completion is cut after its first end-of-sequence token, if it has one.

    Args:
        model: the model; `generate` uses the model's own generation config.
        config: a config whose pad token and list of end tokens are used; the rest is ignored.
        prompt_ids: B lists of prompt token ids.
    """
    width = max(len(ids) for ids in prompt_ids)
    padded_ids = []
    padding_masks = []
    for ids in prompt_ids:
        padding = width - len(ids)
        padded_ids.append([config.pad_token_id] * padding + ids)
        padding_masks.append([0] * padding + [1] * len(ids))
    input_ids = torch.tensor(padded_ids, device=model.device)  # (B, P)
    attention_mask = torch.tensor(padding_masks, device=model.device)  # (B, P)
    generate: Any = model.generate  # a `GenerationMixin`'s
    output = generate(input_ids=input_ids, attention_mask=attention_mask)  # (B, P + T)
    end_tokens = set(config.eos_token_id)
    return [cut_after_end(ids, end_tokens) for ids in output[:, width:].tolist()]


def cut_after_end(ids: list[int], end_tokens: set[int]) -> list[int]:
    """Return the tokens up to and including the first end token, or all tokens if there is none."""
    for i, token in enumerate(ids):
        if token in end_tokens:
            return ids[: i + 1]
    return ids
