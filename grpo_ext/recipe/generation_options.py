"""Rules for `generation_kwargs`, whose options vLLM and transformers name differently."""

from collections.abc import Iterator
from typing import Any

from grpo_ext.common.files import data_yaml
from grpo_ext.common.stop_strings import KEY, stop_strings_of
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.recipe.episode_options import TURN_ENDS, environments_of
from grpo_ext.recipe.overlap_options import OWN_GENERATION
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule, refuses
from grpo_ext.recipe.typed_values import Values

# options of transformers, with those of vLLM that do the same
VLLM_NAMES = {
    "eos_token_id": "stop_token_ids",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
}
# options of vLLM, with those of transformers that do the same and that a recipe may set
TRANSFORMERS_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "stop": "stop_strings",
    "stop_token_ids": "stop_strings",
}
# for each way of sampling, the rejected options with the reasons; and the values without effect
OPTIONS: dict[str, dict[str, Any]] = data_yaml("grpo_ext.recipe", "generation_options.yaml")


def stop_strings_that_are_no_texts(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if stop strings are not strings, or one of them is empty."""
    try:
        stop_strings_of(v.generation_kwargs)
    except ValueError as error:
        yield Problem(str(error), "generation_kwargs")


def options_that_the_engine_lacks(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each option that the engine does not have.

    transformers would ignore such an option, and vLLM would raise an error, but only once it is
    loaded. With vLLM, only the options in `VLLM_NAMES`, which belong to transformers, are
    problems. With transformers, `eos_token_id` is a problem, too. With environments, options that
    end a turn are left to another rule. Nothing is checked if the trainer was given a sampler or a
    `rollout_func`.
    """
    options = dict(v.generation_kwargs or {})
    if not options or v.get(OWN_GENERATION):
        return
    if environments_of(v):  # another rule checks the options that end a turn
        options = {key: options[key] for key in options.keys() - {*TURN_ENDS, "stop_strings"}}
    if v.use_vllm:
        for key in sorted(options.keys() & VLLM_NAMES.keys()):
            yield Problem(
                f"generation_kwargs: vLLM has no option {key}. Set {VLLM_NAMES[key]} instead.",
                "generation_kwargs",
            )
        return
    if options.get("eos_token_id") is not None:
        yield Problem(
            "generation_kwargs: eos_token_id cannot be set, because TRL reads the end tokens from "
            "the model's generation_config.json, and would train on the padding after any other "
            "end token. Remove eos_token_id, and set stop_strings or change that file.",
            "generation_kwargs",
        )
    from transformers import GenerationConfig

    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for key in sorted(options.keys() - known):
        remedy = did_you_mean(key, known) or f" Remove {key}."
        if key in TRANSFORMERS_NAMES:
            remedy = f" Set {TRANSFORMERS_NAMES[key]} instead."
        yield Problem(
            f"generation_kwargs: transformers has no option {key}, and would ignore it.{remedy}",
            "generation_kwargs",
        )


def options_that_the_trainer_cannot_follow(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each option that the trainer does not support.

    Such an option changes what the engine returns, ends completions without the trainer's
    knowledge, or is ignored. It is accepted with a value that changes nothing (see `is_neutral`).
    With environments, options that end a turn are left to another rule. Nothing is checked if the
    trainer was given a sampler or a `rollout_func`.
    """
    options = v.generation_kwargs or {}
    if v.get(OWN_GENERATION):
        return
    reasons = dict(OPTIONS["vllm" if v.use_vllm else "transformers"])
    if v.use_vllm and (v.vllm_mode == "colocate" or environments_of(v)):
        reasons |= OPTIONS["vllm_single_requests"]
    if v.use_transformers_continuous_batching and not v.use_vllm:
        reasons |= OPTIONS["continuous_batching"]
    taken = TURN_ENDS if environments_of(v) else set()  # checked by another rule
    for key in sorted(options.keys() & reasons.keys() - taken):
        if is_neutral(key, options[key]):
            continue
        yield Problem(
            f"generation_kwargs: {key} cannot be set, because {reasons[key]}. Remove {key} from "
            "generation_kwargs.",
            "generation_kwargs",
        )


def is_neutral(key: str, value: object) -> bool:
    """Return whether an option of `generation_kwargs` has no effect with this value.

    `disable_compile` never counts as neutral, because TRL sets the same option, which cannot be set
    twice.
    """
    if key == "disable_compile":
        return False
    return value is None or value is False or value == OPTIONS["neutral"].get(key)


@refuses(
    "repetition_penalty",
    "continuous batching ignores `repetition_penalty: {repetition_penalty}`. Remove "
    "repetition_penalty or use_transformers_continuous_batching.",
)
def penalty_that_continuous_batching_drops(v: Values) -> bool:
    by_transformers = v.use_transformers_continuous_batching and not v.use_vllm
    return by_transformers and v.repetition_penalty not in (None, 1.0)


def has_stop_strings(v: Values) -> bool:
    """Return whether `generation_kwargs` sets `stop_strings`, the option of transformers."""
    return bool((v.generation_kwargs or {}).get(KEY))


@refuses(
    "generation_kwargs",
    "`sampler: process` does not support stop_strings in generation_kwargs. Remove one of them.",
)
def process_and_stop_strings(v: Values) -> bool:
    return v.sampler == "process" and has_stop_strings(v)


@refuses(
    "use_transformers_continuous_batching",
    "stop_strings in generation_kwargs do not work with use_transformers_continuous_batching. "
    "Remove one of them.",
)
def stop_strings_of_continuous_batching(v: Values) -> bool:
    by_transformers = v.use_transformers_continuous_batching and not v.use_vllm
    return by_transformers and has_stop_strings(v)


@refuses(
    "generation_kwargs",
    "generation_kwargs: stop_strings do not work with `loss_normalization: micro_batch`, with "
    "which TRL generates the completions itself. Remove stop_strings, or set "
    "`loss_normalization: step`.",
)
def stop_strings_where_trl_generates(v: Values) -> bool:
    by_trl = v.loss_normalization == "micro_batch" and not v.use_vllm
    return by_trl and has_stop_strings(v) and not v.get(OWN_GENERATION)


def stop_tokens_that_are_no_ids(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `stop_token_ids` is set, but is not a list of integers."""
    ids = (v.generation_kwargs or {}).get("stop_token_ids") or []
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        yield Problem(
            f"generation_kwargs: stop_token_ids must be a list of token ids; got {ids!r:.200}.",
            "generation_kwargs",
        )


def lengths_that_are_no_counts(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each token limit that is not a positive integer.

    `null` is a problem, too: transformers would stop after 20 tokens, and vLLM only at the model's
    maximum length.
    """
    options = v.generation_kwargs or {}
    for key in ("max_new_tokens", "max_tokens"):
        length = options.get(key)
        if key in options and not (type(length) is int and length > 0):
            yield Problem(
                f"generation_kwargs: {key} must be a whole number above 0; got {length!r}. Remove "
                f"{key}, and set max_completion_length.",
                "generation_kwargs",
            )


RULES: tuple[Rule, ...] = (
    stop_strings_that_are_no_texts,
    options_that_the_engine_lacks,
    options_that_the_trainer_cannot_follow,
    stop_tokens_that_are_no_ids,
    process_and_stop_strings,
    stop_strings_of_continuous_batching,
    stop_strings_where_trl_generates,
    penalty_that_continuous_batching_drops,
    lengths_that_are_no_counts,
)
