"""Options for the loss, and their rules; see `docs/losses.md`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_ext.objective.kl import REFUSED
from grpo_ext.objective.policy import get_loss, loss_names, ratios_move
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Idle, Rule, refuses
from grpo_ext.recipe.scoring_options import corrected
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import PositiveOrZero, PositiveShare, convert

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # use `objective.policy.clipped`
TRL_LOSSES = (*CLIPPED_LOSSES, "cispo", "sapo", "vespo")
LOSSES = (*TRL_LOSSES, "dppo")  # dppo is this package's own
WITHOUT_DELTA = ("cispo", "sapo", "vespo", "dppo")  # a registered loss may use it


@dataclass
class ObjectiveOptions:
    """Recipe keys for the loss; a base of `GRPOExtConfig`.

    Args:
        loss_normalization (`str`, defaults to `"step"`): the token or completion counts that the
            loss is divided by. `"step"`: those of the whole optimizer step, over all micro-batches
            and ranks, so that the gradient does not depend on how the step is split.
            `"micro_batch"`: the counts that TRL uses.
        positive_nll_coef (`float`, defaults to 0.0): the weight of an additional supervised loss.
            This loss is the mean negative log-likelihood per token of the step's correct
            completions (see `pass_threshold`), including those in groups where all completions are
            correct. It uses the log-probs that `logprob_policy` selects, without importance ratios.
            VAPO (arXiv 2504.05118) uses 0.1.
        kl_estimator (`str`, defaults to `"k3"`): the estimator of the KL to the reference: `"k1"`,
            `"k2"` or `"k3"`. With `use_bias_correction_kl`, the expected gradient of `"k1"` and
            `"k3"` is that of the reverse KL, and `"k2"` is an error. Without it, `"k1"` is an
            error, and for completions of the current policy (but no others), the expected gradient
            of `"k2"` is that of the reverse KL, and the expected gradient of `"k3"`, which the GRPO
            paper uses, is that of the forward KL.
        dppo_delta (`float`, defaults to 0.15): the change in a token's probability above which
            `loss_type: dppo` masks the token, if the update would change it further.
    """

    loss_normalization: Literal["step", "micro_batch"] = "step"
    positive_nll_coef: PositiveOrZero = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    dppo_delta: PositiveShare = 0.15


def upper_clip(v: Values) -> float:
    """Return the upper clip range: `epsilon_high`, or `epsilon` if it is not set."""
    return v.epsilon if v.epsilon_high is None else v.epsilon_high


def delta_below_the_upper_clip(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `delta` is so low that it also clips tokens with positive advantages."""
    bound = 1 + upper_clip(v)
    if v.loss_type in CLIPPED_LOSSES and v.delta is not None and v.delta <= bound:
        yield Problem(
            f"delta must be above 1 + epsilon_high = {bound:g} (epsilon_high defaults to epsilon); "
            f"got {v.delta:g}, which would also clip the ratios of tokens with positive "
            "advantages. INTELLECT-2 (arXiv 2505.07291) uses `delta: 4` with `epsilon: 0.2`.",
            "delta",
        )


@refuses(
    "vllm_importance_sampling_mode",
    "`loss_type: vespo` multiplies the ratios of a sequence's tokens itself, so the correction for "
    "the sampler must be per token. Set `vllm_importance_sampling_mode: token_truncate` or "
    "`token_mask`.",
)
def vespo_with_ratios_of_sequences(v: Values) -> bool:
    by_token = v.vllm_importance_sampling_mode.startswith("token")
    return v.loss_type == "vespo" and corrected(v) and not by_token


@refuses(
    "sync_ref_model",
    "sync_ref_model has no reference model to sync, because beta is 0. Set beta above 0, or "
    "remove sync_ref_model.",
)
def sync_of_no_reference(v: Values) -> bool:
    return v.sync_ref_model and not v.beta


@refuses(
    "sync_ref_model",
    "sync_ref_model needs a separate reference model, but with use_peft the reference is the "
    "model without its adapter. Remove sync_ref_model or use_peft.",
)
def sync_of_the_base_model(v: Values) -> bool:
    return v.sync_ref_model and v.use_peft


@refuses(
    "entropy_coef_min",
    "entropy_coef_min ({entropy_coef_min:g}) is above entropy_coef_max ({entropy_coef_max:g}). "
    "Lower entropy_coef_min, or raise entropy_coef_max.",
)
def entropy_bounds_that_cross(v: Values) -> bool:
    return v.use_adaptive_entropy and v.entropy_coef_min > v.entropy_coef_max


def unknown_loss(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `loss_type` is neither in `LOSSES` nor a registered loss."""
    try:
        convert("loss_type", v.loss_type, Literal[(*LOSSES, *loss_names())])
    except ValueError as error:
        yield Problem(str(error), "loss_type")


def loss_without_its_divisor(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if the loss divides by `max_completion_length`, but that is `null`."""
    name = v.loss_type
    if name not in loss_names() or get_loss(name).aggregation != "constant":
        return
    if v.max_completion_length is None:
        yield Problem(
            f"`loss_type: {name}` divides the loss by max_completion_length, which is null. Set "
            "max_completion_length to a number.",
            "max_completion_length",
        )


def kl_estimator_of_no_kl(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem if `beta` is not 0 and `kl_estimator` does not have the gradient of a KL."""
    reason = REFUSED.get((v.kl_estimator, v.use_bias_correction_kl))
    if v.beta and reason:
        yield Problem(f"kl_estimator: {reason}.", "kl_estimator")


def unclipped(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield a note if `epsilon_high` has no effect, because all ratios are 1.

    With `preset: dapo_paper`, which sets `epsilon_high`, the note is about `preset`.
    """
    batch = batch_of(v, num_processes)
    key = "preset" if v.preset == "dapo_paper" else "epsilon_high"
    moves = (
        ratios_move(batch.gradient_accumulation_steps, batch.passes)
        or v.behaviour_policy == "sampler"
    )
    if not moves and v.epsilon_high is not None and v.loss_type != "cispo":
        slices = 16 * batch.gradient_accumulation_steps
        size = f"steps_per_generation: {slices}"
        if batch.generation_batch_size:
            size = f"generation_batch_size: {slices * batch.micro_batch}"
        yield Problem(
            "epsilon_high clips nothing: each generation is used for one optimizer step only, so "
            "all ratios are 1. For 16 steps per generation, as in DAPO (section 4.1), set "
            f"`{size}`.",
            key,
        )


def low_cap(v: Values, _: int) -> Iterator[Problem]:
    """Yield a note if the cap of CISPO is below 1, so that it applies to nearly every token."""
    cap = upper_clip(v)
    if v.loss_type == "cispo" and cap < 1:
        key = "loss_type" if v.epsilon_high is None else "epsilon_high"
        yield Problem(
            f"`loss_type: cispo` caps ratios at {cap:g} (epsilon_high, by default epsilon). A cap "
            f"below 1 applies to nearly every token, so the gradient is about {cap:g} times that "
            "of REINFORCE and hardly depends on the ratios. ScaleRL (arXiv 2510.13786) uses "
            "`epsilon_high: 5.0`.",
            key,
        )


RULES: tuple[Rule, ...] = (
    Dependency("loss_type", TRL_LOSSES, STEP_NORMALIZATION),
    Dependency("kl_estimator", ("k3",), STEP_NORMALIZATION),
    Dependency("positive_nll_coef", (0.0,), STEP_NORMALIZATION),
    delta_below_the_upper_clip,
    vespo_with_ratios_of_sequences,
    sync_of_no_reference,
    sync_of_the_base_model,
    entropy_bounds_that_cross,
    unknown_loss,
    loss_without_its_divisor,
    kl_estimator_of_no_kl,
)
NOTES: tuple[Rule, ...] = (
    Idle(
        ("delta",),
        lambda v: v.loss_type not in WITHOUT_DELTA,
        "a loss_type that uses it, such as dapo or grpo",
    ),
    Idle(("sapo_*",), lambda v: v.loss_type == "sapo", "`loss_type: sapo`"),
    Idle(("dppo_*",), lambda v: v.loss_type == "dppo", "`loss_type: dppo`"),
    Idle(("vespo_*",), lambda v: v.loss_type == "vespo", "`loss_type: vespo`"),
    Idle(("ref_model_*",), lambda v: v.sync_ref_model, "`sync_ref_model: true`"),
    Idle(("entropy_coef_*",), lambda v: v.use_adaptive_entropy, "`use_adaptive_entropy: true`"),
    Idle(("kl_estimator",), lambda v: v.beta, "beta above 0"),
    unclipped,
)
