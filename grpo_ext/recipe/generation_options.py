"""Rules for `generation_kwargs`, whose options have other names in vLLM than in transformers."""

from collections.abc import Iterator

from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.recipe.episode_options import TURN_ENDS, environments_of
from grpo_ext.recipe.overlap_options import SEPARATE_SAMPLER
from grpo_ext.recipe.problems import Problem
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


def stop_strings_that_are_no_texts(v: Values, _: int) -> Iterator[Problem]:
    """Stop strings must be non-empty strings."""
    try:
        stop_strings_of(v.generation_kwargs)
    except ValueError as error:
        yield Problem(str(error), "generation_kwargs")


def options_that_the_engine_lacks(v: Values, _: int) -> Iterator[Problem]:
    """Options must exist in the engine: transformers ignores others, vLLM refuses them once loaded.

    Nothing is checked for a sampler that was passed to the trainer.
    """
    options = dict(v.generation_kwargs or {})
    if not options or v.get(SEPARATE_SAMPLER):
        return
    if environments_of(v):  # which have a rule of their own for what ends a turn
        options = {key: options[key] for key in options.keys() - {*TURN_ENDS, "stop_strings"}}
    if v.use_vllm:
        for key in sorted(options.keys() & VLLM_NAMES.keys()):
            yield Problem(
                f"generation_kwargs: vLLM has no option {key}. Write {VLLM_NAMES[key]} instead.",
                "generation_kwargs",
            )
        return
    if options.get("eos_token_id") is not None:
        yield Problem(
            "generation_kwargs: eos_token_id does not say where completions end: TRL reads that "
            "from the model's generation_config.json, and would train on the padding after other "
            "end tokens. Write stop_strings, or change that file.",
            "generation_kwargs",
        )
    from transformers import GenerationConfig

    known = vars(GenerationConfig())
    for key in sorted(options.keys() - known.keys()):
        remedy = did_you_mean(key, known) or f" Remove {key}."
        if key in TRANSFORMERS_NAMES:
            remedy = f" Write {TRANSFORMERS_NAMES[key]} instead."
        yield Problem(
            f"generation_kwargs: transformers has no option {key}, and would ignore it.{remedy}",
            "generation_kwargs",
        )


RULES = (stop_strings_that_are_no_texts, options_that_the_engine_lacks)
