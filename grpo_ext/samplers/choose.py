"""Which sampler a trainer gets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.base import Sampler
from grpo_ext.samplers.function import FunctionSampler
from grpo_ext.samplers.hf import HFSampler
from grpo_ext.samplers.vllm import OurVLLM, VLLMSampler
from grpo_ext.seams import trl as seam
from grpo_ext.seams.vllm import generates_with


def our_vllm(args: GRPOExtConfig) -> AbstractContextManager[None]:
    """A trainer that is made within samples with `OurVLLM`, or its kin for `vllm_sync_adapter: adapter`."""
    generation: type[OurVLLM] = OurVLLM
    if args.vllm_sync_adapter == "adapter":
        from grpo_ext.samplers.vllm_adapter import AdapterVLLM as generation  # needs what only a client needs
    return generates_with(partial(generation, args))


def make_sampler(trainer: Any, watched: bool, moves: bool) -> Sampler:
    """What completes a trainer's prompts; `watched`: transformers' sampling steps are; `moves`: the temperature does."""
    args = trainer.args
    vllm = VLLMSampler(trainer.vllm_generation) if trainer.use_vllm else None
    if trainer.rollout_func is not None:
        return FunctionSampler(trainer.rollout_func, trainer, vllm)
    if vllm is not None:
        return vllm
    return HFSampler(
        turn=lambda ids, number: seam.complete(trainer, ids, number),
        model=lambda: trainer.accelerator.unwrap_model(trainer.model_wrapped),
        params=lambda: trainer.parts.scorer.params,
        set_temperature=(lambda temperature: seam.sample_at(trainer, temperature)) if moves else None,
        strict=args.logprob_policy == "sampling",
        every=round(1 / args.sampler_check_share),
        watched=watched,
    )
