"""Checks of what the fast loop can decode; transformers decodes everything else."""

from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import GenerationMode, logits_process, stopping_criteria
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from grpo_ext.decoding.cache import is_supported
from grpo_ext.decoding.play import EpisodeEnds

# Processors and criteria that treat each row separately and keep no state of it.
_PROCESSORS = (
    *(
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
        "TopHLogitsWarper",
    ),
    *("TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "LogitNormalization"),
    *("NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor", "NoBadWordsLogitsProcessor"),
    *(
        "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "ExponentialDecayLengthPenalty",
    ),
    *(
        "SuppressTokensLogitsProcessor",
        "SuppressTokensAtBeginLogitsProcessor",
        "InfNanRemoveLogitsProcessor",
    ),
    *("ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
)
_CRITERIA = ("MaxLengthCriteria", "MaxTimeCriteria", "StopStringCriteria", "EosTokenCriteria")
PROCESSORS = tuple(getattr(logits_process, name) for name in _PROCESSORS)
CRITERIA = (EpisodeEnds, *(getattr(stopping_criteria, name) for name in _CRITERIA))
INPUTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}


class NotSupported(Exception):
    """The fast loop cannot decode this; the message says why."""


def check_model(model: PreTrainedModel) -> None:
    """Raise `NotSupported` for models that the loop cannot call."""
    if model.config.is_encoder_decoder:
        raise NotSupported("the model has an encoder")
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        own = getattr(type(model), name, None) is not getattr(GenerationMixin, name)
        if own or name in vars(model):
            raise NotSupported(f"{type(model).__name__} prepares its inputs with its own {name}")
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise NotSupported("the model is on several devices")
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if ranks > 1 and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)):
        raise NotSupported("the model is sharded, so all ranks must take the same number of steps")


def check_config(config: GenerationConfig) -> None:
    """Raise `NotSupported` if decoding is not token by token."""
    if config.get_generation_mode() not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise NotSupported(f"it decodes by {config.get_generation_mode().value}")
    for name in ("return_dict_in_generate", "prefill_chunk_size", "cache_implementation"):
        if getattr(config, name, None):
            raise NotSupported(f"{name} is set")
    if config.use_cache is False:
        raise NotSupported("use_cache is off")
    if config.pad_token_id is None:
        raise NotSupported("there is no pad token")


def check_call(processors: list[Any], criteria: list[Any], inputs: dict[str, Any]) -> None:
    """Raise `NotSupported` for arguments of `generate` that do not allow rows to leave the batch.

    These are some logits processors, stopping criteria, caches and inputs.
    """
    for processor in processors:
        if type(processor) not in PROCESSORS and not hasattr(processor, "select_rows"):
            raise NotSupported(f"{type(processor).__name__} may have a state per row")
    for criterion in criteria:
        if type(criterion) not in CRITERIA:
            raise NotSupported(f"{type(criterion).__name__} may have a state per row")
    if further := sorted(
        name for name, value in inputs.items() if name not in INPUTS and value is not None
    ):
        raise NotSupported(f"the model gets {', '.join(further)}")
    cache = inputs.get("past_key_values")
    if not is_supported(cache) or cache.get_seq_length() > 0:
        raise NotSupported(f"its cache ({type(cache).__name__}) cannot remove rows")
    if (positions := inputs.get("position_ids")) is not None and positions.dim() != 2:
        raise NotSupported("positions have several dimensions")


def is_noisy(model: torch.nn.Module) -> bool:
    """Whether equal rows may differ: dropout in training mode, or the jitter of a router."""
    for module in model.modules():
        if not module.training:
            continue
        noise = {
            name: value
            for name, value in vars(module).items()
            if "drop" in name or "jitter" in name
        }
        if "Drop" in type(module).__name__:
            noise["p"] = getattr(module, "p", 0.0)
        if any(isinstance(value, float) and value > 0 for value in noise.values()):
            return True
    return False


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """Return the transformers model inside a compiled or a PEFT model, or the model itself."""
    inner: Any = getattr(model, "_orig_mod", model)  # of `torch.compile`
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner
