"""transformers' `generate`, with our decoding loop inside it and a recorder behind its logits processors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import EosTokenCriteria, GenerationConfig, PreTrainedModel, StoppingCriteriaList
from transformers.utils import logging

from grpo_ext.decoding.decode import decode
from grpo_ext.decoding.play import EpisodeEnds, Player
from grpo_ext.decoding.support import NotSupported, base_model, check_model
from grpo_ext.objective.watch import Recorder
from grpo_ext.seams.replace import replaced

logger = logging.get_logger(__name__)
ARGUMENTS = {
    "input_ids",
    "attention_mask",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
}


@contextmanager
def fast_generation(model: torch.nn.Module) -> Iterator[None]:
    """Let the `generate` of a transformers or PEFT model read each distinct prompt once and drop rows that have ended.

    The distribution is the same, and greedy decoding gives the same tokens. If the loop cannot decode as transformers would,
    transformers decodes, and a warning says why once.
    """
    inner: Any = base_model(model)
    plain = inner.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        try:
            if args or set(kwargs) - ARGUMENTS:
                raise NotSupported(
                    f"generate gets {', '.join(sorted(set(kwargs) - ARGUMENTS)) or 'unnamed arguments'}"
                )
            check_model(inner)
            return plain(**kwargs, custom_generate=decode)
        except NotSupported as reason:
            logger.warning_once(
                f"transformers generates without the faster loop of fast_generate, since {reason}."
            )
        return plain(*args, **kwargs)

    with replaced(inner, generate=generate):
        yield


@contextmanager
def watching(
    model: torch.nn.Module, recorder: Recorder | None, player: Player | None = None
) -> Iterator[None]:
    """Add `recorder` after all processors of the model's `generate`, and let `player` play the episodes of its rows."""
    inner: Any = base_model(model)
    build_processors, build_criteria = inner._get_logits_processor, inner._get_stopping_criteria

    def processors(*args: Any, **kwargs: Any) -> Any:
        found = build_processors(*args, **kwargs)
        if recorder is not None:
            recorder.check(found)
        found.extend(added for added in (player, recorder) if added is not None)
        return found

    def criteria(*args: Any, **kwargs: Any) -> Any:
        found = build_criteria(*args, **kwargs)
        if player is None:
            return found
        ends = [criterion for criterion in found if isinstance(criterion, EosTokenCriteria)]
        return StoppingCriteriaList(
            [*(c for c in found if c not in ends), EpisodeEnds(player, ends[0].eos_token_id)]
        )

    with replaced(inner, _get_logits_processor=processors, _get_stopping_criteria=criteria):
        yield


def generate_batch(
    model: PreTrainedModel, config: GenerationConfig, prompt_ids: list[list[int]]
) -> list[list[int]]:
    """Return the completion ids of a batch, each cut after its first end-of-sequence token."""
    width = max(len(ids) for ids in prompt_ids)
    input_ids = torch.tensor(
        [[config.pad_token_id] * (width - len(ids)) + ids for ids in prompt_ids]
    )  # (B, P)
    attention_mask = torch.tensor(
        [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids]
    )  # (B, P)
    generate: Any = model.generate  # a `GenerationMixin`'s
    output = generate(
        input_ids=input_ids.to(model.device), attention_mask=attention_mask.to(model.device)
    )
    tails = output[:, width:].tolist()  # (B, C)
    ends = set(config.eos_token_id)
    return [
        ids[: next((t + 1 for t, token in enumerate(ids) if token in ends), len(ids))]
        for ids in tails
    ]
