"""Replace the classes with which TRL talks to vLLM."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.replace import replaced


def generates_with(generation: Any) -> AbstractContextManager[None]:
    """Within the context, a new trainer makes `generation` instead of a `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def made_with(**classes: Any) -> AbstractContextManager[None]:
    """Within the context, a new `VLLMGeneration` makes these classes instead of `LLM` or `VLLMClient`."""
    return replaced(trl_vllm, **classes)


def usual_vllm() -> Any:
    """Return the class of the engine inside this process."""
    return trl_vllm.LLM


def add_adapters(llm: Any, request: Callable[[], Any]) -> None:
    """Let an engine add to its base, whenever it generates, the adapter that `request` returns then."""
    plain = llm.generate
    llm.generate = lambda *args, **kwargs: plain(*args, **kwargs, lora_request=request())


def weights_held(vllm: Any) -> dict[str, Any]:
    """Return the parameters of a colocated engine by name; none of a server, or of an engine that sleeps in between."""
    if getattr(vllm, "mode", "") != "colocate" or vllm.enable_sleep_mode:
        return {}
    return dict(vllm.llm.llm_engine.model_executor.driver_worker.model_runner.model.named_parameters())
