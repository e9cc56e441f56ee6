"""Choose the sampler of a trainer, its sampling parameters, and check that its samples can be
scored exactly.
"""

import copy
import logging
import os
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from grpo_ext.common.main_rank import from_main
from grpo_ext.objective.policy import ratios_move
from grpo_ext.objective.sampling import (
    FIELD_DEFAULTS,
    UNTOLD_KEPT_SETS,
    SamplingError,
    SamplingParams,
    resolve_sampling,
)
from grpo_ext.recipe.overlap_options import SHARDED
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.samplers.hf import HFSampler
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.rollout_function import FunctionSampler
from grpo_ext.samplers.vllm import OurVLLM, VLLMSampler
from grpo_ext.seams.vllm import generates_with

logger = logging.getLogger(__name__)


def our_vllm(args: GRPOExtConfig) -> AbstractContextManager[None]:
    """Within the context, a new trainer samples with `OurVLLM`, or `AdapterVLLM` for
    `vllm_sync_adapter: adapter`.
    """
    generation: type[OurVLLM] = OurVLLM
    if args.vllm_sync_adapter == "adapter":
        from grpo_ext.samplers.vllm_adapter import (
            AdapterVLLM as generation,
        )  # imports packages that only a client needs
    return generates_with(partial(generation, args))


def make_sampler(trainer: SampledTrainer, watched: bool) -> tuple[Sampler, SamplingParams]:
    """Make the sampler of a trainer, and the parameters that its completions are scored with.

    Args:
        trainer: whose model is sampled.
        watched: whether the sampling steps of transformers' `generate` are recorded.

    Raises:
        ValueError: as `scoring_params` and `process_sampler`.
    """
    vllm = VLLMSampler(trainer.vllm_generation) if trainer.use_vllm else None
    if trainer.rollout_func is not None:
        function_sampler = FunctionSampler(trainer.rollout_func, trainer, vllm)
        return function_sampler, scoring_params(trainer, function_sampler.abilities)
    if vllm is not None:
        return vllm, scoring_params(trainer, vllm.abilities)
    if trainer.args.sampler == "process":
        params = scoring_params(trainer, ProcessSampler.abilities)
        return process_sampler(trainer, params), params
    abilities = replace(HFSampler.abilities, returns_kept_tokens=watched)
    params = scoring_params(trainer, abilities)
    return HFSampler(trainer, abilities, params), params


def process_sampler(trainer: SampledTrainer, params: SamplingParams) -> ProcessSampler:
    """Make the sampler process of this rank.

    Raises:
        ValueError: if the model is sharded or on several GPUs, or `sampler_device` does not exist.
    """
    if trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled():
        raise ValueError(SHARDED)
    args = trainer.args
    if args.n_gpu > 1:
        raise ValueError(
            "sampler: process needs one GPU for each process that trains: start it by accelerate "
            "launch."
        )
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    gpus = torch.cuda.device_count()
    device = "cpu"
    if gpus > ranks:
        device = f"cuda:{ranks + trainer.accelerator.local_process_index % (gpus - ranks)}"
    elif gpus and trainer.accelerator.is_main_process and not args.sampler_device:
        logger.warning(
            "sampler: process samples on the CPU, since every visible GPU trains. sampler_device "
            "names another."
        )
    config = copy.deepcopy(trainer.generation_config)
    config.eos_token_id = trainer.eos_token_ids
    model = trainer.accelerator.unwrap_model(trainer.model)
    device = args.sampler_device or device
    if (where := torch.device(device)).type == "cuda" and (where.index or 0) >= gpus:
        raise ValueError(f"sampler_device: {device} is not there: {gpus} GPUs are visible.")
    limit = args.vllm_server_request_timeout
    fast = args.fast_generate
    return ProcessSampler(model, config, params, device, limit, fast)


def scoring_params(trainer: SampledTrainer, abilities: SamplerAbilities) -> SamplingParams:
    """Return the sampling parameters that completions are scored with, by `logprob_policy`.

    `ValueError` if the samples cannot be scored exactly, with what to change.
    """
    args = trainer.args
    if args.logprob_policy == "trl":
        return SamplingParams(trainer.temperature)
    _warn_of_dropout(trainer)
    if args.logprob_policy == "model":
        _warn_of_another_policy(trainer, abilities)
        return SamplingParams()
    params = _sampling_of(trainer, abilities)
    if params.restricted and trainer.rollout_func is not None:
        raise ValueError(
            "rollout_func may sample in any way, so truncation cannot be scored exactly: set "
            "top_k: 0, top_p: 1.0, min_p: null, or logprob_policy: model."
        )
    corrects = abilities.separate_engine and args.vllm_importance_sampling_correction
    old_pass = ratios_move(
        args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
    )
    if (
        params.truncated
        and not abilities.returns_kept_tokens
        and args.beta
        and not (old_pass or corrects)
    ):
        raise ValueError(UNTOLD_KEPT_SETS)
    reads = (
        trainer.use_vllm
        and trainer.vllm_mode == "server"
        and (corrects or args.behaviour_policy == "sampler")
    )
    if (params.restricted or params.temperature != 1.0) and reads:
        _refuse_raw_logprobs(trainer)
    return params


def _sampling_of(trainer: SampledTrainer, abilities: SamplerAbilities) -> SamplingParams:
    """Resolve the sampling parameters from all places that set them."""
    args = trainer.args
    vllm = abilities.truncation_order == "vllm"
    given = dict(args.generation_kwargs or {})
    if args.vllm_structured_outputs_regex and vllm:
        given["structured_outputs"] = args.vllm_structured_outputs_regex
    if not vllm and "suppress_tokens" in trainer.generation_kwargs:
        given["suppress_tokens"] = trainer.generation_kwargs["suppress_tokens"]
    own = getattr(trainer.accelerator.unwrap_model(trainer.model), "generation_config", None)
    # only `generate` uses the model's defaults
    filled_in = not (abilities.separate_engine or trainer.use_transformers_continuous_batching)
    return resolve_sampling(
        {name: getattr(args, name) for name in FIELD_DEFAULTS},
        given,
        own.to_dict() if filled_in and own is not None else None,
        sampler=abilities.truncation_order,
        watched=abilities.returns_kept_tokens,
    )


def _warn_of_dropout(trainer: SampledTrainer) -> None:
    """Warn of the effect of dropout on log-probs, if dropout is on."""
    kinds = (torch.nn.Dropout, torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout)
    active = [part.p for part in trainer.model.modules() if isinstance(part, kinds) and part.p > 0]
    how = "Write disable_dropout: true or lora_dropout: 0."
    if attention := getattr(trainer.model.config.get_text_config(), "attention_dropout", 0.0):
        active.append(attention)
        how = "Set attention_dropout to 0 in the model's config.json, and leave disable_dropout on."
    if active and trainer.accelerator.is_main_process:
        logger.warning(
            f"The model uses dropout ({max(active):g}), which differs in each pass: completions "
            "are scored under another policy than the one that sampled, and ratios differ from "
            f"1. {how}"
        )


def _warn_of_another_policy(trainer: SampledTrainer, abilities: SamplerAbilities) -> None:
    """Warn of the effect of `logprob_policy: model` if samples are not drawn from the plain softmax
    of the model.
    """
    try:
        params = _sampling_of(trainer, abilities)
        cuts = f"top_k {params.top_k}, top_p {params.top_p:g}, min_p {params.min_p:g}"
        how = f"temperature {params.temperature:g}, {cuts}"
        bare = params.temperature == 1.0 and not params.restricted
    except SamplingError as error:
        how = error.problem
        bare = False
    if not bare and trainer.accelerator.is_main_process:
        logger.warning(
            "logprob_policy: model scores completions without the temperature and truncation "
            f"that they are sampled with ({how}), so the gradient is that of a policy which did "
            "not sample them. sampling/logp_difference and sampling/ratio show the difference; "
            "logprob_policy: sampling scores the policy that sampled."
        )


def _refuse_raw_logprobs(trainer: SampledTrainer) -> None:
    """Raise a `ValueError` on all ranks if the log-probs of a vLLM server are not those that it
    samples with.
    """
    info = from_main(
        trainer.accelerator, lambda: trainer.vllm_generation.vllm_client.get_server_info()
    )
    if (mode := info["model_config"]["logprobs_mode"]) != "processed_logprobs":
        raise ValueError(
            f"The vLLM server returns {mode}, which leave out temperature and truncation. Start "
            "it with --logprobs-mode processed_logprobs."
        )
