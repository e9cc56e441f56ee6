"""Our classes in place of those with which TRL talks to vLLM."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.replace import replaced


def generates_with(generation: Any) -> AbstractContextManager[None]:
    """A trainer that is made within makes this in place of a `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def made_with(**classes: Any) -> AbstractContextManager[None]:
    """A `VLLMGeneration` that is set up within makes these in place of `LLM` or `VLLMClient`."""
    return replaced(trl_vllm, **classes)


def usual_vllm() -> Any:
    """The class of the engine within this process."""
    return trl_vllm.LLM
