"""Replace the classes with which TRL talks to vLLM."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.replace import replaced


def generates_with(generation: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within the context, a new trainer makes `generation` instead of a `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def engine_with(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Within the context, a new `VLLMGeneration` passes these arguments to its engine, too."""
    if not settings:
        return nullcontext()
    return replaced(trl_vllm, LLM=partial(trl_vllm.LLM, **settings))


def add_adapters(llm: Any, request: Callable[[], Any]) -> None:
    """Let an engine generate with the adapter that `request` returns at that time."""
    generate = llm.generate
    llm.generate = lambda *args, **kwargs: generate(*args, **kwargs, lora_request=request())


def weights_held(vllm: Any) -> dict[str, Any]:
    """Return the parameters of a colocated engine by name.

    There are none for a server, and for an engine that sleeps while the trainer trains.
    """
    if vllm.mode != "colocate" or vllm.enable_sleep_mode:
        return {}
    executor = vllm.llm.llm_engine.model_executor
    return dict(executor.driver_worker.model_runner.model.named_parameters())
