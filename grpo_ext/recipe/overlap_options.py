"""Options for a separate sampler and its overlap with training; see `docs/overlap.md`."""

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
# an extra key, set if the trainer was given a sampler or a `rollout_func`, which read
# `generation_kwargs` as they like, if at all
OWN_GENERATION = "own_generation"
SHARDED = (
    "`sampler: process` needs whole weights on each rank, but ZeRO-3 and FSDP shard them. Train "
    "with DDP or ZeRO-2 (`accelerate_config: ddp` or `accelerate_config: zero2`), or set "
    "`use_vllm: true` and `vllm_mode: server` instead of `sampler: process`."
)

# keys that need the tokens that truncation kept, with the value at which they do not
KEPT_TOKENS_NEEDED = {"overlap": "off", "behaviour_policy": "decoupled"}

# keys of `generation_kwargs` that do not work in rounds: the end of a round would count as the end
# of the completion, or every round would start from the same random state
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
            process`, or a vLLM server) work on the next generation while the trainer trains on the
            current one. Completions are then sampled with the weights of one generation earlier;
            the sampler's own log-probs are used, so ratios and gradients stay exact.
        sampler (`str`, *optional*): `"process"` samples with transformers in a second process for
            each rank. `None`: the trainer samples, or vLLM with `use_vllm`.
        sampler_device (`str`, *optional*): the device of the sampler process, such as `"cuda:1"`.
            `None`: a GPU that is not used for training, else the CPU.
        behaviour_policy (`str`, defaults to `"decoupled"`): the policy in the denominator of the
            ratios, if the sampler is separate. `"decoupled"`: the trainer's own weights before the
            step; a bounded weight (`vllm_importance_sampling_mode`) corrects for the difference
            from the sampler, as in AReaL (arXiv 2505.24298, section 5.2). `"sampler"`: the sampler
            itself, with the log-probs that it returned; this needs neither that weight nor the
            forward pass for it.
        partial_rollouts (`int`, defaults to 0): with `overlap: one_step`, completions are sampled
            in rounds of this many tokens, and a generation ends when enough groups are finished;
            the other completions continue under the next weights. 0: a generation ends with its
            longest completion.
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
    """Return top_k, top_p and min_p, overridden and extended by `generation_kwargs`."""
    sampling: dict[str, Any] = {"top_k": v.top_k, "top_p": v.top_p, "min_p": v.min_p}
    return sampling | (v.generation_kwargs or {})


def needs_kept(v: Values) -> bool:
    """Return whether the run needs the tokens that the sampler's truncation kept."""
    older_policy = any(v[key] != off for key, off in KEPT_TOKENS_NEEDED.items())
    return older_policy and truncates(v)


def truncates(v: Values) -> bool:
    """Return whether top_k, top_p or min_p may remove tokens."""
    sampling = sampling_of(v)
    limits_number = sampling["top_k"] not in (None, 0, -1)
    return bool(limits_number or sampling["top_p"] not in (None, 1) or sampling["min_p"])


def has_top_k(v: Values) -> bool:
    """Return whether `top_k` limits the tokens; False if it is not an integer."""
    top_k = sampling_of(v)["top_k"]
    return isinstance(top_k, int) and top_k > 0


def vllm_may_return_kept(v: Values) -> bool:
    """Return whether vLLM can return the tokens that truncation kept, if its version supports it.

    It needs top_k, which bounds their number, and a GPU. A server is assumed to have a GPU until
    the trainer has connected to it.
    """
    on_cpu = v.use_cpu and v.vllm_mode == "colocate"
    return bool(v.use_vllm and has_top_k(v) and not on_cpu)


def vllm_hides_kept(v: Values) -> bool:
    """Return whether vLLM samples with truncation, and cannot return the tokens that it kept."""
    return bool(v.use_vllm and truncates(v) and not vllm_may_return_kept(v))


def overlap_without_its_sampler(v: Values, num_processes: int) -> Iterator[Problem]:
    """`overlap` and `behaviour_policy: sampler` need a separate sampler and suitable settings."""
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
                "only together with top_k. Write top_k as well, or remove top_p and min_p, also "
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
    """`partial_rollouts` must divide the length, and needs whole groups and no stop options."""
    if not v.partial_rollouts:
        return
    if not v.max_completion_length:
        yield Problem(
            "partial_rollouts must divide max_completion_length, which is null. Write a multiple "
            f"of {v.partial_rollouts} as max_completion_length.",
            "partial_rollouts",
        )
    elif v.max_completion_length % v.partial_rollouts:
        fitting = -(-v.max_completion_length // v.partial_rollouts) * v.partial_rollouts
        yield Problem(
            f"partial_rollouts must divide max_completion_length; {v.partial_rollouts} does not "
            f"divide {v.max_completion_length}. Write, for example, "
            f"`max_completion_length: {fitting}`.",
            "partial_rollouts",
        )
    batch = batch_of(v, num_processes)
    if batch.completions // num_processes % v.num_generations:
        yield Problem(
            f"partial_rollouts needs whole groups in each process, but {batch.completions} "
            f"completions per generation are not a multiple of {num_processes} processes x "
            f"num_generations ({v.num_generations}). Write a multiple of num_generations as "
            "per_device_train_batch_size.",
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
