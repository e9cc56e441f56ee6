"""Rules for the loss and for scoring completions."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from grpo_ext.common.modules import load_file
from grpo_ext.objective.advantage import advantage_names, joint_advantage_names
from grpo_ext.objective.kl import REFUSED
from grpo_ext.objective.policy import get_loss, loss_names, ratios_move
from grpo_ext.objective.sampling import (
    FIELD_DEFAULTS,
    UNTOLD_KEPT_SETS,
    SamplingError,
    resolve_sampling,
)
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.needs import CLIPPED_LOSSES, LOSSES, compares_groups
from grpo_ext.recipe.overlap_options import separate
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.typed_values import Rule, Values, refuses
from grpo_ext.recipe.values import convert


def upper_clip(v: Values) -> float:
    """Return the upper clip range: `epsilon_high`, or `epsilon` if it is not set."""
    return v.epsilon if v.epsilon_high is None else v.epsilon_high


def corrected(v: Values) -> bool:
    """Return whether the log-probs of a separate sampler correct the gradient."""
    return (
        separate(v) and v.vllm_importance_sampling_correction and v.behaviour_policy == "decoupled"
    )


@refuses(
    "max_tokens_per_micro_batch",
    "top_entropy_quantile below 1 is taken over a micro-batch, which "
    "max_tokens_per_micro_batch would cut: remove one of them.",
)
def entropy_quantile_of_a_cut_batch(v: Values) -> object:
    return v.max_tokens_per_micro_batch and v.top_entropy_quantile not in (None, 1.0)


@refuses(
    "delta",
    "delta must be above 1 + epsilon_high; {delta:g} would clip positive advantages before "
    "epsilon_high does, and below 1 "
    "stop their gradient. INTELLECT-2 (arXiv 2505.07291) uses delta: 4 with epsilon: 0.2.",
)
def delta_below_the_upper_clip(v: Values) -> bool:
    clips = v.loss_type in CLIPPED_LOSSES
    return clips and v.delta is not None and v.delta <= 1 + upper_clip(v)


@refuses(
    "vllm_importance_sampling_mode",
    "loss_type: vespo multiplies the ratios of a sequence itself, so it needs those of its "
    "tokens. "
    "Write vllm_importance_sampling_mode: token_truncate or token_mask.",
)
def vespo_with_ratios_of_sequences(v: Values) -> bool:
    by_token = v.vllm_importance_sampling_mode.startswith("token")
    return v.loss_type == "vespo" and corrected(v) and not by_token


@refuses(
    "neftune_noise_alpha",
    "neftune_noise_alpha adds noise to the embeddings of each pass, so completions are scored "
    "under a policy different from the one that sampled them. Remove neftune_noise_alpha.",
)
def noise_on_scored_embeddings(v: Values) -> object:
    return v.neftune_noise_alpha and v.loss_normalization == "step"


@refuses(
    "loss_normalization",
    "loss_normalization: micro_batch ignores top_k, top_p and min_p in scores: unset them, or "
    "write logprob_policy: trl.",
)
def truncation_that_trl_does_not_score(v: Values) -> object:
    truncated = v.top_k or v.top_p < 1 or v.min_p
    return v.loss_normalization != "step" and v.logprob_policy != "trl" and truncated


@refuses("sync_ref_model", "sync_ref_model has no reference to sync: set beta above 0.")
def sync_of_no_reference(v: Values) -> bool:
    return v.sync_ref_model and not v.beta


@refuses(
    "sync_ref_model",
    "sync_ref_model needs a reference model, and with use_peft that is the model without its "
    "adapter: remove one of them.",
)
def sync_of_the_base_model(v: Values) -> bool:
    return v.sync_ref_model and v.use_peft


@refuses(
    "entropy_coef_min",
    "entropy_coef_min {entropy_coef_min:g} is above entropy_coef_max {entropy_coef_max:g}: "
    "swap them.",
)
def entropy_bounds_that_cross(v: Values) -> bool:
    return v.use_adaptive_entropy and v.entropy_coef_min > v.entropy_coef_max


def load_plugins(v: Values, _: int) -> Iterator[Problem]:
    """Load the plugin files, which may register what the next rules look up; yield nothing."""
    for path in v.reward_plugins or ():
        with suppress(Exception):  # reported where the rewards are built
            load_file(path)
    yield from ()


def unknown_loss(v: Values, _: int) -> Iterator[Problem]:
    """`loss_type` must be one of TRL's losses or a registered one."""
    try:
        convert("loss_type", v.loss_type, Literal[(*LOSSES, *loss_names())])
    except ValueError as error:
        yield Problem(str(error), "loss_type")


def unknown_advantages(v: Values, _: int) -> Iterator[Problem]:
    """Advantage estimators must be registered, and stay within groups if ties are broken."""
    registered = {
        "scale_rewards": (*advantage_names(), True, False),
        "multi_objective_aggregation": joint_advantage_names(),
    }
    for key, names in registered.items():
        try:
            convert(key, v[key], Literal[names])
        except ValueError as error:
            yield Problem(str(error), key)
    if v.tie_break_reward is not None and compares_groups(v):
        yield Problem(
            f"tie_break_reward: {v.tie_break_reward} needs scale_rewards: group.",
            "tie_break_reward",
        )


def loss_without_its_divisor(v: Values, _: int) -> Iterator[Problem]:
    """A loss that divides by `max_completion_length` needs it to be set."""
    name = v.loss_type
    if name not in loss_names() or get_loss(name).aggregation != "constant":
        return
    if v.max_completion_length is None:
        yield Problem(
            f"loss_type {name} divides the loss by max_completion_length, which is null: "
            "write a number.",
            "max_completion_length",
        )


def kl_estimator_of_no_kl(v: Values, _: int) -> Iterator[Problem]:
    """The KL estimator must have the gradient of a KL, unless `beta` is 0."""
    reason = REFUSED.get((v.kl_estimator, v.use_bias_correction_kl))
    if v.beta and reason:
        yield Problem(f"kl_estimator: {reason}.", "kl_estimator")


def sampling_that_cannot_be_scored(v: Values, num_processes: int) -> Iterator[Problem]:
    """With `logprob_policy: sampling`, it must be possible to score completions exactly."""
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
    if params.truncated and not watched and v.beta and not (corrected(v) or with_old_pass):
        yield Problem(UNTOLD_KEPT_SETS, "beta")


RULES: tuple[Rule, ...] = (
    entropy_quantile_of_a_cut_batch,
    delta_below_the_upper_clip,
    vespo_with_ratios_of_sequences,
    noise_on_scored_embeddings,
    truncation_that_trl_does_not_score,
    sync_of_no_reference,
    sync_of_the_base_model,
    entropy_bounds_that_cross,
    load_plugins,
    unknown_loss,
    unknown_advantages,
    loss_without_its_divisor,
    kl_estimator_of_no_kl,
    sampling_that_cannot_be_scored,
)
