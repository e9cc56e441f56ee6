"""Check whether the fast loop can decode a `generate` call; if not, transformers decodes it."""

from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import LongTensor, Tensor, distributed
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.decoding.play import EpisodeEnds
from grpo_ext.decoding.stop import StopStringEnds

# Logits processors and stopping criteria that treat each row separately and keep no state per row.
STATELESS_PROCESSORS = (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
STATELESS_CRITERIA = (
    EosTokenCriteria,
    EpisodeEnds,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
    StopStringEnds,
)
INPUTS = {  # model inputs that the loop supports, in addition to the tokens
    CACHE_INPUT,
    "attention_mask",
    "logits_to_keep",
    "position_ids",
    "use_cache",
}


class NotSupported(Exception):
    """Raised if the fast loop cannot decode a `generate` call; the message, a clause, says why."""


@runtime_checkable
class SelectsRows(Protocol):
    """Protocol for a logits processor that keeps state per row and can drop finished rows."""

    def select_rows(self, input_ids: Tensor, rows: Tensor) -> None:
        """Continue with only some of the rows.

        Args:
            input_ids: (b, P + t), the prompts and the tokens so far, including those of the rows
                that leave the batch.
            rows: (b',), the indices of the rows that continue.
        """


@runtime_checkable
class ForcesTokens(Protocol):
    """Protocol for a logits processor that can force the next token of a row."""

    def gives_all(self) -> bool:
        """Return whether the next token of every row is forced, so that no logits are needed."""


def check_model(model: PreTrainedModel) -> None:
    """Check that the fast loop can call a model.

    Raises:
        NotSupported: if the model has an encoder, prepares its inputs in its own way, is on several
            devices, or is sharded over several ranks.
    """
    if model.config.is_encoder_decoder:
        raise NotSupported("the model has an encoder")
    for name in ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation"):
        overrides = getattr(type(model), name, None) is not getattr(GenerationMixin, name)
        if overrides or name in vars(model):
            raise NotSupported(f"{type(model).__name__} prepares its inputs with its own {name}")
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise NotSupported("the model is on several devices; load it on one, without device_map")
    is_alone = not distributed.is_initialized() or distributed.get_world_size() == 1
    if is_sharded(model) and not is_alone:
        raise NotSupported(
            "the model is sharded (ZeRO-3 or FSDP), so all ranks must decode the same number of "
            "steps; ZeRO-2 and DDP do not shard the model"
        )


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether each rank holds only a part of the model's weights (ZeRO-3 or FSDP)."""
    return bool(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))


def check_config(config: GenerationConfig) -> None:
    """Check that the fast loop supports a generation config.

    Raises:
        NotSupported: if the config selects a mode other than sampling or greedy decoding, sets an
            option that the loop does not implement, turns the cache off, or has no pad token.
    """
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise NotSupported(
            f"the generation config selects {mode.value}, but fast_generate supports only sampling "
            "and greedy decoding; in generation_kwargs or in the model's generation_config.json, "
            "remove the option that selects it (such as num_beams, penalty_alpha or "
            "prompt_lookup_num_tokens)"
        )
    for name in ("return_dict_in_generate", "prefill_chunk_size", "cache_implementation"):
        if getattr(config, name, None):
            raise NotSupported(
                f"{name} is set; remove it from the recipe, from generation_kwargs, or from the "
                "model's generation_config.json"
            )
    if config.use_cache is False:
        raise NotSupported(
            "use_cache is off; remove it from generation_kwargs, or from the model's "
            "generation_config.json"
        )
    if config.pad_token_id is None:
        raise NotSupported("there is no pad token; set the tokenizer's pad_token")


def check_call(processors: list[Any], criteria: list[Any], inputs: dict[str, Any]) -> None:
    """Check that the fast loop can remove ended rows from the batch of a `generate` call.

    Args:
        processors: the logits processors of the call.
        criteria: the stopping criteria of the call.
        inputs: the model inputs other than the tokens, by name.

    Raises:
        NotSupported: if a criterion, or a processor that is not a `SelectsRows`, may keep state per
            row; if the model gets an input that the loop does not support, or `position_ids` is not
            two-dimensional; or if the cache is missing, cannot remove rows, or is not empty.
    """
    for processor in processors:
        if type(processor) not in STATELESS_PROCESSORS and not isinstance(processor, SelectsRows):
            raise NotSupported(
                f"{type(processor).__name__} may keep state per row; in generation_kwargs or in "
                "the model's generation_config.json, remove the option that adds it"
            )
    for criterion in criteria:
        if type(criterion) not in STATELESS_CRITERIA:
            raise NotSupported(
                f"{type(criterion).__name__} may keep state per row; in generation_kwargs or in "
                "the model's generation_config.json, remove the option that adds it"
            )
    for name in sorted(inputs.keys() - INPUTS):
        if inputs[name] is not None:
            raise NotSupported(
                f"the model gets the input {name}, which this version of grpo_ext does not "
                "support; if transformers is newer than the version in constraints.txt, install "
                "that version, or a newer grpo_ext"
            )
    cache = inputs.get(CACHE_INPUT)
    if cache is None:
        raise NotSupported("transformers passes no cache to the model")
    if not has_selectable_rows(cache):
        raise NotSupported(f"the cache ({type(cache).__name__}) cannot remove rows")
    length = cache.get_seq_length()
    if length > 0:
        raise NotSupported(
            f"the cache already holds {length} tokens of each row, but the loop processes prompts "
            "from their first token; pass no past_key_values"
        )
    positions = inputs.get("position_ids")
    if positions is not None and positions.dim() != 2:
        raise NotSupported(f"position_ids has {positions.dim()} dimensions instead of 2")


def check_decoding(
    model: PreTrainedModel,
    input_ids: LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> LongTensor:
    """Check the arguments of a `decode` call, and return the prompts unchanged.

    The signature is that of a `custom_generate` function of transformers.

    Args:
        model: ignored; `check_model` checks it.
        input_ids: (B, P), the left-padded prompts.
        logits_processor: the logits processors.
        stopping_criteria: the stopping criteria.
        generation_config: the generation config.
        inputs: the model inputs other than the tokens, by name.

    Raises:
        NotSupported: if the fast loop cannot decode the call.
    """
    check_config(generation_config)
    check_call(logits_processor, stopping_criteria, inputs)
    return input_ids


def is_noisy(model: torch.nn.Module) -> bool:
    """Return whether dropout or router jitter may give identical rows different outputs.

    Only modules in training mode count.
    """
    for module in model.modules():
        if not module.training:
            continue
        rates = []
        for name, attribute in vars(module).items():
            if "drop" in name or "jitter" in name:
                rates.append(attribute)
        if "Drop" in type(module).__name__:
            rates.append(getattr(module, "p", 0.0))
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            return True
    return False


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """Return the transformers model inside a compiled or PEFT model, or the model itself."""
    inner: Any = getattr(model, "_orig_mod", model)  # of `torch.compile`
    if hasattr(inner, "get_base_model"):
        return inner.get_base_model()
    return inner


def has_selectable_rows(cache: object) -> TypeGuard[DynamicCache]:
    """Return whether `cache` is a `DynamicCache` whose rows can be removed and repeated.

    Such a cache is not offloaded, and consists only of full-attention and sliding-window layers.
    """
    if type(cache) is not DynamicCache or cache.offloading:
        return False
    supported_layers = (DynamicLayer, DynamicSlidingWindowLayer)
    return all(type(layer) in supported_layers for layer in cache.layers)
