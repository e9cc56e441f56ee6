"""The fast loop behind a model's own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from grpo_ext.rollout.decode import decode
from grpo_ext.rollout.support import NotSupported, check_model

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

    inner.generate = generate
    try:
        yield
    finally:
        del inner.generate


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """The transformers model within a compiled or a PEFT model, or the model itself."""
    inner: Any = getattr(model, "_orig_mod", model)  # of `torch.compile`
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
