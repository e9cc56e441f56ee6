"""Replace the classes through which TRL uses vLLM, and access a vLLM engine."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import trl.generation.vllm_generation as trl_vllm
import trl.trainer.grpo_trainer as trl_trainer

from grpo_ext.seams.generate import replaced


def generates_with(generation: Callable[..., Any]) -> AbstractContextManager[None]:
    """Return a context in which a new trainer calls `generation` instead of `VLLMGeneration`."""
    return replaced(trl_trainer, VLLMGeneration=generation)


def engine_with(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which a new `VLLMGeneration` also passes `settings` to its engine."""
    if not settings:
        return nullcontext()
    return replaced(trl_vllm, LLM=partial(trl_vllm.LLM, **settings))


def add_adapters(llm: Any, request: Callable[[], Any]) -> None:
    """Make an engine use an adapter in each call of `generate` from now on.

    Args:
        llm: vLLM's `LLM`, whose method `generate` is replaced.
        request: returns the `LoRARequest` for each call, or `None` for no adapter.
    """
    generate = llm.generate
    llm.generate = lambda *args, **kwargs: generate(*args, **kwargs, lora_request=request())


def watch_outputs(llm: Any, seen: Callable[[list[Any]], None]) -> None:
    """Make an engine also pass the outputs of each `generate` call to `seen`.

    TRL itself keeps only parts of these outputs.

    Args:
        llm: vLLM's `LLM`, whose method `generate` is replaced.
        seen: called with the list of vLLM's `RequestOutput`s.
    """
    generate = llm.generate

    def watched(*args: Any, **kwargs: Any) -> list[Any]:
        outputs = generate(*args, **kwargs)
        seen(outputs)
        return outputs

    llm.generate = watched


def weights_held(vllm: Any) -> dict[str, Any]:
    """Return the parameters of a colocated engine's model, by name.

    The dict is empty for a server, and for an engine that sleeps while the trainer trains.

    Args:
        vllm: TRL's `VLLMGeneration`.
    """
    if vllm.mode != "colocate" or vllm.enable_sleep_mode:
        return {}
    executor = vllm.llm.llm_engine.model_executor
    return dict(executor.driver_worker.model_runner.model.named_parameters())
