"""Options for sampling in parallel with training, and their rules; see `docs/overlap.md`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Idle, Rule, refuses
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import CountOrZero

# an extra key, set if the trainer was given a sampler that is a separate engine
SEPARATE_SAMPLER = "separate_sampler"
# an extra key, set if the trainer was given a sampler or a `rollout_func`, which may use
# `generation_kwargs` in any way or ignore it
OWN_GENERATION = "own_generation"
SHARDED = (
    "`sampler: process` needs whole weights on each rank, but ZeRO-3 and FSDP shard them. Train "
    "with DDP or ZeRO-2 (`accelerate_config: ddp` or `accelerate_config: zero2`), or set "
    "`use_vllm: true` and `vllm_mode: server` instead of `sampler: process`."
)

# keys that require the sampler's kept tokens, each with the value that does not require them
KEPT_TOKENS_NEEDED = {"overlap": "off", "behaviour_policy": "decoupled"}

# keys of `generation_kwargs` that do not work in rounds: the start or end of a round would count as
# that of the completion, or every round would start from the same RNG state
NOT_IN_ROUNDS = {
    "seed",
    "stop",
    "stop_strings",
    "stop_token_ids",
    "max_tokens",
    "max_new_tokens",
    "min_tokens",
    "min_new_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
}


@dataclass
class OverlapOptions:
    """Recipe keys for a separate sampler; a base of `GRPOExtConfig`.

    Args:
        overlap (`str`, defaults to `"off"`): `"one_step"` lets a separate sampler (`sampler:
            process`, or a vLLM server) generate the next completions while the trainer trains on
            the current ones. Completions then come from weights that are one generation old; the
            sampler's own log-probs are used to correct for this (see `behaviour_policy`).
        sampler (`str`, *optional*): `"process"` samples with transformers in a second process for
            each rank. If `None`, vLLM samples if `use_vllm` is set, otherwise the trainer does.
        sampler_device (`str`, *optional*): the device of the sampler process, such as `"cuda:1"`.
            If `None`, it is a GPU that is not used for training, or the CPU if there is none.
        behaviour_policy (`str`, defaults to `"decoupled"`): the policy in the denominator of the
            ratios, if the sampler is separate. `"decoupled"`: the trainer's own weights before the
            step; a bounded importance weight (`vllm_importance_sampling_mode`) corrects for the
            difference from the sampler, as in AReaL (arXiv 2505.24298, section 5.2). `"sampler"`:
            the sampler itself, with the log-probs that it returned; no importance weight is
            applied, so the forward pass that computes it is left out.
        partial_rollouts (`int`, defaults to 0): with `overlap: one_step`, completions are sampled
            in rounds of this many tokens, and a generation ends when enough groups are finished;
            the other completions continue under the next weights. If 0, a generation ends when its
            longest completion is finished.
    """

    overlap: Literal["off", "one_step"] = "off"
    sampler: Literal["process"] | None = None
    sampler_device: str | None = None
    behaviour_policy: Literal["decoupled", "sampler"] = "decoupled"
    partial_rollouts: CountOrZero = 0


def separate(v: Values) -> bool:
    """Return whether the sampler is separate from the trained model.

    It is separate with vLLM, with `sampler: process`, and if the trainer was given a separate
    engine.
    """
    return bool(v.use_vllm or v.sampler or v.get(SEPARATE_SAMPLER))


@refuses(
    "sampler",
    "`sampler: process` and `use_vllm: true` are both set, but only one of them can sample. Remove "
    "one of them.",
)
def process_and_vllm(v: Values) -> bool:
    return v.sampler == "process" and v.use_vllm


@refuses(
    "sampler",
    "`sampler: process` does not support use_transformers_continuous_batching. Remove one of them.",
)
def process_and_continuous_batching(v: Values) -> bool:
    return v.sampler == "process" and v.use_transformers_continuous_batching


@refuses("sampler", SHARDED)
def process_without_whole_weights(v: Values) -> object:
    return v.sampler == "process" and sharding(v) >= 3


@refuses(
    "overlap",
    "`overlap: one_step` needs separate devices for sampling and training, but "
    "`vllm_mode: colocate` shares one. Set `vllm_mode: server`.",
)
def overlap_on_one_device(v: Values) -> bool:
    return v.overlap != "off" and v.use_vllm and v.vllm_mode == "colocate"


@refuses(
    "overlap",
    "`overlap: one_step` trains on completions of older weights, which needs a correction. Set "
    "`vllm_importance_sampling_correction: true`, or `behaviour_policy: sampler`.",
)
def older_weights_without_a_correction(v: Values) -> bool:
    corrects = v.vllm_importance_sampling_correction or v.behaviour_policy == "sampler"
    return v.overlap != "off" and not corrects


def sampling_of(v: Values) -> dict[str, Any]:
    """Return a dict of top_k, top_p and min_p, updated with all of `generation_kwargs`."""
    sampling: dict[str, Any] = {"top_k": v.top_k, "top_p": v.top_p, "min_p": v.min_p}
    return sampling | (v.generation_kwargs or {})


def needs_kept(v: Values) -> bool:
    """Return whether the run needs to know which tokens top_k, top_p and min_p kept."""
    older_policy = any(v[key] != off for key, off in KEPT_TOKENS_NEEDED.items())
    return older_policy and truncates(v)


def truncates(v: Values) -> bool:
    """Return whether top_k, top_p or min_p may exclude tokens from sampling."""
    sampling = sampling_of(v)
    limits_number = sampling["top_k"] not in (None, 0, -1)
    return bool(limits_number or sampling["top_p"] not in (None, 1) or sampling["min_p"])


def has_top_k(v: Values) -> bool:
    """Return whether `top_k` is a positive integer, and so limits the number of kept tokens."""
    top_k = sampling_of(v)["top_k"]
    return isinstance(top_k, int) and top_k > 0


def vllm_may_return_kept(v: Values) -> bool:
    """Return whether vLLM can return the kept tokens, provided that its version supports this.

    These are the tokens that top_k, top_p and min_p keep. vLLM can return them only on a GPU, and
    only with top_k, which bounds their number. A vLLM server is assumed to run on a GPU, because
    its device is not known before the trainer has connected to it.
    """
    on_cpu = v.use_cpu and v.vllm_mode == "colocate"
    return bool(v.use_vllm and has_top_k(v) and not on_cpu)


def vllm_hides_kept(v: Values) -> bool:
    """Return whether vLLM samples with top_k, top_p or min_p but cannot return the kept tokens."""
    return bool(v.use_vllm and truncates(v) and not vllm_may_return_kept(v))


def overlap_without_its_sampler(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield problems if `overlap` or `behaviour_policy: sampler` lacks what it requires.

    Both require a separate sampler, and neither supports environments. If the sampler uses top_k,
    top_p or min_p, it must be able to return the kept tokens. With `overlap`, each generation must
    also end with an optimizer step.
    """
    hides_kept = vllm_hides_kept(v)
    for key, off in KEPT_TOKENS_NEEDED.items():
        if v[key] == off:
            continue
        if environments_of(v):
            yield Problem(
                f"`{key}: {v[key]}` does not support environments yet. Remove {key} or the "
                "environments.",
                key,
            )
        if not separate(v):
            yield Problem(
                f"`{key}: {v[key]}` needs a separate sampler. Set `sampler: process`, or "
                "`use_vllm: true` with `vllm_mode: server`.",
                key,
            )
        if hides_kept and has_top_k(v):
            yield Problem(
                f"`{key}: {v[key]}` needs the tokens that top_k, top_p and min_p keep, which vLLM "
                "returns only on a GPU. Remove top_k, top_p and min_p, also from "
                "generation_kwargs.",
                key,
            )
        elif hides_kept:
            yield Problem(
                f"`{key}: {v[key]}` needs the tokens that top_p and min_p keep, which vLLM returns "
                "only together with top_k. Set top_k as well, or remove top_p and min_p, also "
                "from generation_kwargs.",
                key,
            )
    batch = batch_of(v, num_processes)
    if v.overlap != "off" and batch.passes % batch.gradient_accumulation_steps:
        steps = math.lcm(batch.slices, batch.gradient_accumulation_steps)
        size = f"steps_per_generation: {steps}"
        if batch.generation_batch_size:
            size = f"generation_batch_size: {batch.micro_batch * steps}"
        yield Problem(
            "`overlap: one_step` needs generations that end with an optimizer step, but "
            f"{batch.passes} micro-batches (steps_per_generation x num_iterations) are not a "
            f"multiple of gradient_accumulation_steps ({batch.gradient_accumulation_steps}). Set "
            f"`{size}`, which makes the generations larger.",
            "overlap",
        )


def rounds_that_do_not_fit(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield problems if completions cannot be sampled in rounds, as `partial_rollouts` requires.

    `partial_rollouts` must divide `max_completion_length`, each process must have whole groups, and
    `generation_kwargs` must have no option in `NOT_IN_ROUNDS`.
    """
    if not v.partial_rollouts:
        return
    if not v.max_completion_length:
        yield Problem(
            "partial_rollouts must divide max_completion_length, which is null. Set "
            f"max_completion_length to a multiple of {v.partial_rollouts}.",
            "partial_rollouts",
        )
    elif v.max_completion_length % v.partial_rollouts:
        fitting = -(-v.max_completion_length // v.partial_rollouts) * v.partial_rollouts
        yield Problem(
            f"partial_rollouts must divide max_completion_length; {v.partial_rollouts} does not "
            f"divide {v.max_completion_length}. Set, for example, "
            f"`max_completion_length: {fitting}`.",
            "partial_rollouts",
        )
    batch = batch_of(v, num_processes)
    if batch.completions // num_processes % v.num_generations:
        yield Problem(
            f"partial_rollouts needs whole groups in each process, but {batch.completions} "
            f"completions per generation are not a multiple of {num_processes} processes x "
            f"num_generations ({v.num_generations}). Set per_device_train_batch_size to a multiple "
            "of num_generations.",
            "partial_rollouts",
        )
    if conflicts := ", ".join(sorted(NOT_IN_ROUNDS & (v.generation_kwargs or {}).keys())):
        yield Problem(
            "partial_rollouts samples in rounds, and these options would apply to each round, not "
            f"to the completion: {conflicts}. Remove them from generation_kwargs.",
            "partial_rollouts",
        )


RULES: tuple[Rule, ...] = (
    Dependency("sampler", (None,), STEP_NORMALIZATION),
    Dependency("overlap", ("off",), STEP_NORMALIZATION | {"logprob_policy": ("sampling",)}),
    Dependency(
        "behaviour_policy",
        ("decoupled",),
        STEP_NORMALIZATION | {"logprob_policy": ("sampling",)},
    ),
    Dependency(
        "partial_rollouts", (0,), {"overlap": ("one_step",), "group_filter": ("drop", "off")}
    ),
    process_and_vllm,
    process_and_continuous_batching,
    process_without_whole_weights,
    overlap_on_one_device,
    older_weights_without_a_correction,
    overlap_without_its_sampler,
    rounds_that_do_not_fit,
)
NOTES: tuple[Rule, ...] = (
    Idle(("sampler_device",), lambda v: v.sampler == "process", "`sampler: process`"),
)
