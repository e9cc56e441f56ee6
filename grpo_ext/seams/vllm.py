"""Replace the classes through which TRL uses vLLM, and reach into its engine."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.generate import replaced


def generates_with(generation: Callable[..., Any]) -> AbstractContextManager[None]:
    """Within the context, make a new trainer call `generation` instead of `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def engine_with(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Within the context, make a new `VLLMGeneration` also pass `settings` to its engine."""
    if not settings:
        return nullcontext()
    return replaced(trl_vllm, LLM=partial(trl_vllm.LLM, **settings))


def add_adapters(llm: Any, request: Callable[[], Any]) -> None:
    """Make an engine generate with the adapter that `request` returns at each call."""
    generate = llm.generate
    llm.generate = lambda *args, **kwargs: generate(*args, **kwargs, lora_request=request())


def watch_outputs(llm: Any, seen: Callable[[list[Any]], None]) -> None:
    """Make an engine also pass the outputs of each `generate` to `seen`; TRL drops parts of them.

    The outputs are vLLM's `RequestOutput`s.
    """
    generate = llm.generate

    def watched(*args: Any, **kwargs: Any) -> list[Any]:
        outputs = generate(*args, **kwargs)
        seen(outputs)
        return outputs

    llm.generate = watched


def weights_held(vllm: Any) -> dict[str, Any]:
    """Return the parameters of a colocated engine by name.

    The result is empty for a server, and for an engine that sleeps while the trainer trains.
    """
    if vllm.mode != "colocate" or vllm.enable_sleep_mode:
        return {}
    executor = vllm.llm.llm_engine.model_executor
    return dict(executor.driver_worker.model_runner.model.named_parameters())
