"""Resolve the sampling parameters of a run from all the places in which they can be set."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.files import data_yaml

# The values that transformers uses if neither the caller nor the model sets one
# (`GenerationConfig._get_default_generation_params`).
HF_DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
FIELD_DEFAULTS = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": None,
    "repetition_penalty": 1.0,
}
# Values with which the options below have no effect; 1 is the neutral factor and the neutral number
# of beams.
NEUTRAL: tuple[object, ...] = (None, False, 0, 1, [], {})

# Options that change the scores of tokens. `not_scorable` gives the reason for each option, and
# `masking` the values with which it has no effect.
OPTIONS: dict[str, dict[str, Any]] = data_yaml("grpo_ext.objective", "generation_options.yaml")

UNTOLD_KEPT_SETS = (
    "With truncated sampling, the reference needs the tokens that the policy kept, but this "
    "sampler does not return them. Remove top_k, top_p and min_p, or set `beta: 0` to train "
    "without the reference. With vLLM, you may instead set "
    "`vllm_importance_sampling_correction: true` or, on a GPU with vLLM 0.28 or later, set top_k "
    "and start a vLLM server, if you use one, with `grpo-ext serve`."
)


class SamplingError(ValueError):
    """Raised if sampling options are contradictory or invalid, or prevent exact scoring.

    Args:
        option: the name of the option.
        problem: what is wrong, without the final period.
        remedy: how to correct it, in complete sentences.
    """

    def __init__(self, option: str, problem: str, remedy: str = ""):
        super().__init__(f"{problem}. {remedy}".rstrip())
        self.option = option
        self.problem = problem


@dataclass(frozen=True)
class SamplingParams:
    """The distribution that tokens are drawn from, given the logits."""

    temperature: float = 1.0  # divides the logits; above 0
    top_k: int = 0  # keep the k most likely tokens, and ties with the last of them; 0 keeps all
    # keep the smallest set of most likely tokens with at least this total probability; 1 keeps all
    top_p: float = 1.0
    # keep tokens with at least this share of the highest probability; 0 keeps all
    min_p: float = 0.0
    # "hf" (temperature, top_k, top_p, min_p) or "vllm" (temperature, min_p, top_k, top_p)
    order: str = "hf"
    masked: bool = False  # whether other options remove tokens that only the sampler can report
    suppressed: tuple[int, ...] = ()  # tokens that are never drawn

    @property
    def restricted(self) -> bool:
        """Whether some tokens may have probability 0."""
        return self.truncated or bool(self.suppressed)

    @property
    def truncated(self) -> bool:
        """Whether options other than suppress_tokens remove tokens.

        The tokens that they keep may differ between positions.
        """
        return self.masked or self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def resolve_sampling(
    fields: Mapping[str, Any],
    generation_kwargs: Mapping[str, Any] | None = None,
    model_defaults: Mapping[str, Any] | None = None,
    *,
    sampler: str = "hf",
    watched: bool = True,
) -> SamplingParams:
    """Resolve the sampling parameters of a run, and check that samples can be scored exactly.

    Args:
        fields: the training arguments `temperature`, `top_k`, `top_p`, `min_p` and
            `repetition_penalty`, by name.
        generation_kwargs: options that override `fields`. A field with a value other than its
            default must not be overridden with a different value.
        model_defaults: the model's generation config, used for values that are `None`. Pass it only
            if the sampler uses it, as transformers does.
        sampler: "hf" or "vllm"; it determines the order of truncation, and the values of options
            that are set nowhere.
        watched: whether the sampler's steps can be observed. If `False`, no options other than
            top_k, top_p, min_p and suppress_tokens may remove tokens, because samples could then
            not be scored exactly.

    Raises:
        SamplingError: if a field and `generation_kwargs` contradict each other, decoding is greedy,
            a value has the wrong type or is out of range, or the samples cannot be scored exactly.
    """
    overrides = dict(generation_kwargs or {})
    for name, value in overrides.items():
        field = fields.get(name)
        if name in FIELD_DEFAULTS and field not in (None, FIELD_DEFAULTS[name], value):
            raise SamplingError(
                name,
                f"{name} is {field}, but generation_kwargs sets `{name}: {value}`",
                f"Remove {name} from generation_kwargs.",
            )
    if not overrides.get("do_sample", True):
        value = json.dumps(overrides["do_sample"])
        raise SamplingError(
            "do_sample",
            f"`do_sample: {value}` selects greedy decoding, so all completions of a prompt would "
            "be identical",
            "Remove do_sample from generation_kwargs.",
        )
    # a `None` in generation_kwargs overrides the field, so that the model's value applies
    options: dict[str, Any] = dict(model_defaults or {})
    for name, value in {**fields, **overrides}.items():
        if value is not None:
            options[name] = value
    _refuse(options, watched)
    defaults: Mapping[str, Any] = HF_DEFAULTS if sampler == "hf" else FIELD_DEFAULTS
    numbers = {}
    for name in HF_DEFAULTS:
        value = options.get(name)
        if value is None:
            value = defaults[name]
        numbers[name] = _number(name, value)
    temperature = numbers["temperature"]
    top_p = numbers["top_p"]
    min_p = numbers["min_p"]
    top_k = max(int(numbers["top_k"]), 0)
    if not temperature > 0:
        raise SamplingError(
            "temperature",
            f"temperature is {temperature:g}, but training draws samples",
            "Set temperature above 0.",
        )
    if not 0 < top_p <= 1:
        raise SamplingError(
            "top_p",
            f"top_p is {top_p:g}, but must lie in (0, 1]",
            "Set `top_p: 1.0` to keep all tokens.",
        )
    if not 0 <= min_p <= 1:
        raise SamplingError(
            "min_p",
            f"min_p is {min_p:g}, but must lie in [0, 1]",
            "Set `min_p: 0.0` to keep all tokens.",
        )
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        order=sampler,
        masked=bool(_masks(options)),
        suppressed=_token_ids("suppress_tokens", options.get("suppress_tokens")),
    )


def _number(name: str, value: Any) -> float:
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        raise SamplingError(name, f"{name} is {value!r}, but must be a number") from None
    if not math.isfinite(number):
        raise SamplingError(name, f"{name} is {value!r}, but must be a finite number")
    return number


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(token, int) for token in value):
        return tuple(value)
    raise SamplingError(name, f"{name} is {value!r}, but must be a list of token ids")


def _masks(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the options in `OPTIONS["masking"]` that are set to remove tokens."""
    names = []
    for name, neutral in OPTIONS["masking"].items():
        if values.get(name) not in (None, *neutral):
            names.append(name)
    return names


def _refuse(values: Mapping[str, Any], watched: bool) -> None:
    way_out = (
        "Remove the option (it may come from the model's generation_config.json), or set "
        "`logprob_policy: model` to train the policy without it, or `logprob_policy: trl`."
    )
    for name, reason in OPTIONS["not_scorable"].items():
        value = values.get(name)
        if value is True or value not in NEUTRAL:  # True equals 1, but switches an option on
            raise SamplingError(
                name,
                f"completions sampled with `{name}: {value}` cannot be scored exactly, because "
                f"{reason}",
                way_out,
            )
    if watched:
        return
    for name in _masks(values):
        raise SamplingError(
            name,
            f"completions sampled with `{name}: {values[name]}` cannot be scored exactly, because "
            "this sampler does not report which tokens the option removed",
            way_out,
        )
