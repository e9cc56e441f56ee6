"""Replace the classes with which TRL talks to vLLM."""

from contextlib import AbstractContextManager
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.replace import replaced


def generates_with(generation: Any) -> AbstractContextManager[None]:
    """Let a trainer that is made within make `generation` instead of a `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def made_with(**classes: Any) -> AbstractContextManager[None]:
    """Let a `VLLMGeneration` that is made within make these instead of `LLM` or `VLLMClient`."""
    return replaced(trl_vllm, **classes)


def usual_vllm() -> Any:
    """Return the class of the engine inside this process."""
    return trl_vllm.LLM
