"""Options for scoring completions, that is, for computing their log-probs in the trainer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_ext.objective.policy import ratios_move
from grpo_ext.objective.sampling import (
    FIELD_DEFAULTS,
    UNTOLD_KEPT_SETS,
    SamplingError,
    resolve_sampling,
)
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.overlap_options import separate, vllm_may_return_kept
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Rule, refuses
from grpo_ext.recipe.typed_values import Values


@dataclass
class ScoringOptions:
    """Recipe keys for scoring; a base of `GRPOExtConfig`.

    Args:
        logprob_policy (`str`, defaults to `"sampling"`): the distribution under which log-probs are
            computed. `"sampling"`: with the temperature, top_k, top_p and min_p that completions
            were sampled with; settings for which this cannot be done exactly raise an error.
            `"model"`: without any of them, as in the formula of the GRPO paper; the run warns once,
            and logs the difference from the sampling policy as `sampling/logp_difference` and
            `sampling/ratio`. `"trl"`: with the temperature only.
        residual_in_fp32 (`bool`, *optional*): whether a model with weights in half precision
            (bfloat16 or float16) keeps its residual stream in float32, both when sampling with
            transformers and in scoring. Matrix multiplications stay in half precision. In our
            measurements, this about halves the difference between the log-probs of the sampler and
            the trainer. If `None`, this is done on a CPU if the model supports it. Megatron-LM
            calls this option `fp32_residual_connection`.
        attention_in_fp32 (`bool`, *optional*): whether a model that computes in half precision
            computes its attention in float32, both when sampling with transformers and in scoring.
            On a CPU, attention is computed in float64, so that the order of summation does not
            change the results. This option requires `attn_implementation: sdpa`. If `None`, this is
            done on a CPU if the model supports it.
    """

    logprob_policy: Literal["sampling", "model", "trl"] = "sampling"
    residual_in_fp32: bool | None = None
    attention_in_fp32: bool | None = None


def corrected(v: Values) -> bool:
    """Return whether the gradient is corrected with the log-probs of a separate sampler.

    This is never the case with `behaviour_policy: sampler`, whose ratios already compare the policy
    with the sampler.
    """
    return (
        separate(v) and v.vllm_importance_sampling_correction and v.behaviour_policy == "decoupled"
    )


@refuses(
    "neftune_noise_alpha",
    "neftune_noise_alpha adds noise to the embeddings of each pass, so completions are scored "
    "under a policy different from the one that sampled them. Remove neftune_noise_alpha.",
)
def noise_on_scored_embeddings(v: Values) -> object:
    return v.neftune_noise_alpha and v.loss_normalization == "step"


@refuses(
    "loss_normalization",
    "`loss_normalization: micro_batch` scores completions without the top_k, top_p and min_p that "
    "they were sampled with. Remove these keys, or set `logprob_policy: trl` to accept this.",
)
def truncation_that_trl_does_not_score(v: Values) -> object:
    truncated = v.top_k or v.top_p < 1 or v.min_p
    return v.loss_normalization != "step" and v.logprob_policy != "trl" and truncated


@refuses(
    "attn_implementation",
    "`attention_in_fp32: true` changes only `sdpa` attention, but this recipe uses "
    "{attn_implementation}. Set `attn_implementation: sdpa`, or remove attention_in_fp32.",
)
def another_attention_in_float32(v: Values) -> object:
    return v.attention_in_fp32 and v.attn_implementation not in (None, "sdpa")


@refuses(
    "use_transformers_continuous_batching",
    "`attention_in_fp32: true` does not change the paged attention of continuous batching. Remove "
    "attention_in_fp32 or use_transformers_continuous_batching.",
)
def paged_attention_in_float32(v: Values) -> object:
    return v.attention_in_fp32 and v.use_transformers_continuous_batching


def sampling_that_cannot_be_scored(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield a problem if `logprob_policy: sampling` cannot score completions exactly.

    Also yield a problem if sampling options are invalid or contradict each other, or if `beta` is
    not 0 but the trainer cannot find out which tokens top_k, top_p and min_p kept.
    """
    if v.logprob_policy != "sampling":
        return
    watched = not (v.use_vllm or v.use_transformers_continuous_batching)
    try:
        params = resolve_sampling(
            {key: v[key] for key in FIELD_DEFAULTS},
            v.generation_kwargs,
            sampler="vllm" if v.use_vllm else "hf",
            watched=watched,
        )
    except SamplingError as error:
        from_kwargs = error.option in (v.generation_kwargs or ())
        yield Problem(str(error), "generation_kwargs" if from_kwargs else error.option)
        return
    batch = batch_of(v, num_processes)
    # the pass for old log-probs also records the kept tokens
    with_old_pass = ratios_move(batch.gradient_accumulation_steps, batch.passes)
    knows_kept = watched or vllm_may_return_kept(v) or corrected(v) or with_old_pass
    if params.truncated and v.beta and not knows_kept:
        yield Problem(UNTOLD_KEPT_SETS, "beta")


RULES: tuple[Rule, ...] = (
    Dependency("residual_in_fp32", (None, False), STEP_NORMALIZATION),
    Dependency("attention_in_fp32", (None, False), STEP_NORMALIZATION),
    another_attention_in_float32,
    paged_attention_in_float32,
    noise_on_scored_embeddings,
    truncation_that_trl_does_not_score,
    sampling_that_cannot_be_scored,
)
