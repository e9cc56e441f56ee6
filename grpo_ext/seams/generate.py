"""transformers' `generate`, with our decoding loop inside it and a recorder behind its logits processors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import logging

from grpo_ext.decoding.decode import decode
from grpo_ext.decoding.support import NotSupported, base_model, check_model
from grpo_ext.objective.watch import Recorder
from grpo_ext.seams.replace import replaced

logger = logging.get_logger(__name__)
ARGUMENTS = {"input_ids", "attention_mask", "generation_config", "logits_processor", "stopping_criteria"}


@contextmanager
def fast_generation(model: torch.nn.Module) -> Iterator[None]:
    """Let the model's `generate` read each distinct prompt once and drop rows that have ended.

    What is decoded has the same distribution, and greedily the same tokens. Where the loop cannot decode as transformers
    would, transformers does, and says why once.

    Args:
        model: a transformers model, or a PEFT model around one.
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
                f"Generation is transformers' own, not the faster one of fast_generate, since {reason}."
            )
        return plain(*args, **kwargs)

    with replaced(inner, generate=generate):
        yield


@contextmanager
def watching(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Put `recorder` behind all processors of the model's `generate`."""
    inner: Any = base_model(model)
    build = inner._get_logits_processor

    def build_and_watch(*args: Any, **kwargs: Any) -> Any:
        processors = build(*args, **kwargs)
        recorder.check(processors)
        processors.append(recorder)
        return processors

    with replaced(inner, _get_logits_processor=build_and_watch):
        yield
