"""Choose a trainer's sampler, and check that its samples can be scored exactly."""

import copy
import logging
import os
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch
from torch.nn import AlphaDropout, Dropout, FeatureAlphaDropout
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
from grpo_ext.recipe.overlap_options import KEPT_TOKENS_NEEDED, SHARDED
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.samplers.hf import HFSampler
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.rollout_function import FunctionSampler
from grpo_ext.samplers.vllm import VLLMSampler
from grpo_ext.samplers.vllm_generation import OurVLLM
from grpo_ext.seams.precision import Precision, autocast_dtype, choose_precision
from grpo_ext.seams.vllm import generates_with

logger = logging.getLogger(__name__)


def our_vllm(args: GRPOExtConfig) -> AbstractContextManager[None]:
    """Return a context manager that replaces TRL's `VLLMGeneration` for new trainers.

    A trainer that is created within the context uses `AdapterVLLM` if `vllm_sync_adapter` is
    "adapter", and `OurVLLM` otherwise.
    """
    if args.vllm_sync_adapter != "adapter":
        return generates_with(partial(OurVLLM, args))
    # imports packages that only a client needs
    from grpo_ext.samplers.vllm_adapter import AdapterVLLM

    return generates_with(partial(AdapterVLLM, args))


def make_sampler(trainer: SampledTrainer, watched: bool) -> tuple[Sampler, SamplingParams]:
    """Create a trainer's sampler; return it and the sampling parameters for scoring its samples.

    Args:
        trainer: the trainer whose model is sampled.
        watched: whether the sampler's steps can be observed, so that generations may contain the
            tokens that truncation kept.

    Raises:
        ValueError: if the samples cannot be scored exactly, the model does not support the
            requested precision, or `sampler: process` cannot be used here.
    """
    vllm = VLLMSampler(trainer.vllm_generation, watched) if trainer.use_vllm else None
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
    return HFSampler(trainer, abilities, params, precision_of(trainer)), params


def process_sampler(trainer: SampledTrainer, params: SamplingParams) -> ProcessSampler:
    """Create the `ProcessSampler` of this rank, which samples with the parameters `params`.

    Raises:
        ValueError: if the model is sharded, cannot be copied to another process, or does not
            support `residual_in_fp32` or `attention_in_fp32`; if this process trains on several
            GPUs; or if `sampler_device` is not a device or does not exist.
    """
    if trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled():
        raise ValueError(SHARDED)
    args = trainer.args
    if args.sampler_device:
        check_device(args.sampler_device)
    if args.n_gpu > 1:
        raise ValueError(
            "`sampler: process` cannot be used when one process drives several GPUs (this one sees "
            f"{args.n_gpu}). Start one process per GPU with `accelerate launch`, or set "
            "CUDA_VISIBLE_DEVICES to a single GPU."
        )
    config = copy.deepcopy(trainer.generation_config)
    config.eos_token_id = trainer.eos_token_ids
    return ProcessSampler(
        trainer.accelerator.unwrap_model(trainer.model),
        config,
        params,
        args.sampler_device or free_device(trainer),
        limit=args.vllm_server_request_timeout,
        fast=args.fast_generate,
        precision=precision_of(trainer),
    )


def precision_of(trainer: SampledTrainer) -> Precision:
    """Return the dtypes that the trainer's sampler and scorer compute in.

    Raises:
        ValueError: if `residual_in_fp32` or `attention_in_fp32` is set, but the model does not
            support this setting.
    """
    args = trainer.args
    # continuous batching has its own attention, and rejects a model with this package's attention
    attention = False if trainer.use_transformers_continuous_batching else args.attention_in_fp32
    return choose_precision(
        trainer.accelerator.unwrap_model(trainer.model),
        autocast_dtype(trainer.accelerator),
        args.cast_lm_head_to_fp32,
        args.residual_in_fp32,
        attention,
    )


def check_device(name: str) -> None:
    """Raise `ValueError` if `name` is not a device, or is a CUDA device that does not exist."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(
            f"sampler_device: {name!r} is not a device. Set it to cpu, or to a GPU such as cuda:1."
        ) from None
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        devices = ["cpu", *(f"cuda:{index}" for index in range(num_gpus))]
        raise ValueError(
            f"sampler_device: {name} does not exist. Choose a device that this process can use: "
            f"{', '.join(devices)}."
        )


def free_device(trainer: SampledTrainer) -> str:
    """Return the device for this rank's sampler: a GPU that no trainer uses, or else the CPU.

    If there are fewer free GPUs than ranks, several ranks share a GPU. If all GPUs are used for
    training, the main process logs a warning. If the trainer runs on the CPU, so does the sampler.
    """
    if trainer.accelerator.device.type == "cpu":
        return "cpu"
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    num_gpus = torch.cuda.device_count()
    num_free = num_gpus - num_ranks
    if num_free > 0:
        return f"cuda:{num_ranks + trainer.accelerator.local_process_index % num_free}"
    if num_gpus > 0 and trainer.accelerator.is_main_process:
        logger.warning(
            "`sampler: process` samples on the CPU, because every visible GPU is reserved for a "
            "training process. To use another device, set sampler_device."
        )
    return "cpu"


def scoring_params(trainer: SampledTrainer, abilities: SamplerAbilities) -> SamplingParams:
    """Return the sampling parameters for scoring completions, according to `logprob_policy`.

    Unless `logprob_policy` is "trl", log a warning if the model uses dropout. If `logprob_policy`
    is "model", also log a warning if scoring ignores options used for sampling.

    Args:
        trainer: the trainer whose arguments and model determine the parameters.
        abilities: the sampler's abilities.

    Raises:
        ValueError: if the samples cannot be scored exactly; the message says what to change.
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
            "rollout_func may sample in any way, so truncated sampling cannot be scored exactly. "
            "Set `top_k: 0`, `top_p: 1.0` and `min_p: null`, and remove options such as "
            "suppress_tokens; or set `logprob_policy: model` to score without them."
        )
    corrects = abilities.separate_engine and args.vllm_importance_sampling_correction
    old_pass = ratios_move(
        args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
    )
    _refuse_unknown_kept_tokens(args, params, abilities)
    knows_kept_tokens = abilities.returns_kept_tokens or old_pass or corrects
    if params.truncated and args.beta and not knows_kept_tokens:
        raise ValueError(UNTOLD_KEPT_SETS)
    has_server = trainer.use_vllm and trainer.vllm_mode == "server"
    reads_logps = corrects or args.behaviour_policy == "sampler"
    is_plain_softmax = params.temperature == 1.0 and not params.restricted
    if has_server and reads_logps and not is_plain_softmax:
        _refuse_raw_logprobs(trainer)
    return params


def _refuse_unknown_kept_tokens(
    args: GRPOExtConfig, params: SamplingParams, abilities: SamplerAbilities
) -> None:
    """Check that no option requires kept tokens that the sampler does not return.

    With the options in `KEPT_TOKENS_NEEDED`, the trainer cannot recompute the kept tokens, because
    it runs no forward pass with the sampler's weights.

    Args:
        args: the training arguments.
        params: the sampling parameters.
        abilities: the sampler's abilities.

    Raises:
        ValueError: if such an option is set, sampling is truncated, and the sampler is a separate
            engine that does not return kept tokens.
    """
    if abilities.returns_kept_tokens or not params.truncated or not abilities.separate_engine:
        return
    for key, off in KEPT_TOKENS_NEEDED.items():
        value = getattr(args, key)
        if value != off:
            raise ValueError(
                f"`{key}: {value}` needs the tokens that top_k, top_p and min_p keep, but this "
                "sampler does not return them. Remove top_k, top_p and min_p, or use a sampler "
                "that returns the kept tokens. vLLM 0.28 or later does so on a GPU if top_k is "
                "set. A vLLM server must also be started with `grpo-ext serve`, or with "
                "--return-sampling-mask and --enable-scale-out."
            )


def _sampling_of(trainer: SampledTrainer, abilities: SamplerAbilities) -> SamplingParams:
    """Resolve the sampling parameters from the config, `generation_kwargs` and model defaults.

    Raises:
        SamplingError: if samples drawn with these parameters cannot be scored exactly.
    """
    args = trainer.args
    by_vllm = abilities.truncation_order == "vllm"
    generation_kwargs = dict(args.generation_kwargs or {})
    if args.vllm_structured_outputs_regex and by_vllm:
        generation_kwargs["structured_outputs"] = args.vllm_structured_outputs_regex
    if not by_vllm and "suppress_tokens" in trainer.generation_kwargs:
        generation_kwargs["suppress_tokens"] = trainer.generation_kwargs["suppress_tokens"]
    model_defaults = None
    # only `generate` uses the model's defaults
    if not (abilities.separate_engine or trainer.use_transformers_continuous_batching):
        model = trainer.accelerator.unwrap_model(trainer.model)
        config = getattr(model, "generation_config", None)
        if config is not None:
            model_defaults = config.to_dict()
    return resolve_sampling(
        {name: getattr(args, name) for name in FIELD_DEFAULTS},
        generation_kwargs,
        model_defaults,
        sampler=abilities.truncation_order,
        watched=abilities.returns_kept_tokens and not by_vllm,
    )


def _warn_of_dropout(trainer: SampledTrainer) -> None:
    """Log a warning if the model uses dropout, because log-probs then differ from the sampler's."""
    rates = []
    for module in trainer.model.modules():
        if isinstance(module, (Dropout, AlphaDropout, FeatureAlphaDropout)) and module.p > 0:
            rates.append(module.p)
    remedy = "Set `disable_dropout: true`."
    attention_rate = getattr(trainer.model.config.get_text_config(), "attention_dropout", 0.0)
    if attention_rate:
        rates.append(attention_rate)
        remedy = (
            "Load the model with attention_dropout=0.0 (in a recipe, `model_init_kwargs: "
            "{attention_dropout: 0.0}`), and set `disable_dropout: true`."
        )
    if rates and trainer.accelerator.is_main_process:
        logger.warning(
            f"The model uses dropout (p = {max(rates):g}), which drops different units in each "
            "forward pass. Completions are therefore scored under a policy other than the one that "
            f"sampled them, and ratios differ from 1. {remedy}"
        )


def _warn_of_another_policy(trainer: SampledTrainer, abilities: SamplerAbilities) -> None:
    """Log a warning if `logprob_policy: model` makes scoring ignore options used for sampling."""
    if not trainer.accelerator.is_main_process:
        return
    try:
        params = _sampling_of(trainer, abilities)
    except SamplingError as error:
        logger.warning(
            "`logprob_policy: model` scores completions without the options that they are sampled "
            f"with ({error.problem}), so the gradient belongs to a policy other than the one "
            "that sampled them. sampling/logp_difference and sampling/ratio show the difference. "
            "Remove the options to avoid the difference."
        )
        return
    if params.temperature != 1.0 or params.restricted:
        logger.warning(
            "`logprob_policy: model` scores completions without the options that they are sampled "
            f"with (temperature {params.temperature:g}, top_k {params.top_k}, top_p "
            f"{params.top_p:g}, min_p {params.min_p:g}), so the gradient belongs to a policy other "
            "than the one that sampled them. sampling/logp_difference and sampling/ratio show the "
            "difference. Set `logprob_policy: sampling` to score them under the policy that "
            "sampled them."
        )


def _refuse_raw_logprobs(trainer: SampledTrainer) -> None:
    """Raise `ValueError` on all ranks if the vLLM server does not return processed log-probs."""
    info = from_main(
        trainer.accelerator, lambda: trainer.vllm_generation.vllm_client.get_server_info()
    )
    mode = info["model_config"]["logprobs_mode"]
    if mode != "processed_logprobs":
        raise ValueError(
            f"The vLLM server returns {mode}, but the trainer needs log-probs after temperature "
            "and truncation. Start the server with `grpo-ext serve`, or with --logprobs-mode "
            "processed_logprobs."
        )
