"""Replace the classes with which TRL talks to vLLM."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.replace import replaced


def generates_with(generation: Any) -> AbstractContextManager[None]:
    """Within the context, a new trainer makes `generation` instead of a `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def engine_with(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Within the context, a new `VLLMGeneration` makes its engine with these arguments in addition to its own."""
    return replaced(trl_vllm, LLM=partial(trl_vllm.LLM, **settings)) if settings else nullcontext()


def add_adapters(llm: Any, request: Callable[[], Any]) -> None:
    """Let an engine add to its base, whenever it generates, the adapter that `request` returns then."""
    plain = llm.generate
    llm.generate = lambda *args, **kwargs: plain(*args, **kwargs, lora_request=request())


def weights_held(vllm: Any) -> dict[str, Any]:
    """Return the parameters of a colocated engine by name; none of a server, or of an engine that sleeps in between."""
    if getattr(vllm, "mode", "") != "colocate" or vllm.enable_sleep_mode:
        return {}
    return dict(
        vllm.llm.llm_engine.model_executor.driver_worker.model_runner.model.named_parameters()
    )
