"""The options about a separate sampler and its overlap with training. `docs/overlap.md` explains
them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.values import CountOrZero

# set beside the keys of a recipe if the trainer was given a sampler that is another engine
SEPARATE_SAMPLER = "separate_sampler"
SHARDED = (
    "sampler: process copies the weights of its rank, and ZeRO-3 or FSDP shards them: use a "
    "vLLM server, or ddp or zero2."
)


@dataclass
class OverlapOptions:
    """Recipe keys about a separate sampler; a base of `GRPOExtConfig`.

    Args:
        overlap (`str`, defaults to `"off"`): `"one_step"` lets a separate sampler (`sampler:
            process`, or a vLLM server) work on the next generation while the trainer trains on the
            present one. Completions are then sampled by the weights of one generation before; their
            log-probs are those of the sampler, so that ratios and gradients stay exact.
        sampler (`str`, *optional*): `"process"` samples with transformers in a second process
            beside each rank. `None`: the trainer itself, or vLLM with `use_vllm`.
        sampler_device (`str`, *optional*): the device of the sampler process, such as `"cuda:1"`.
            `None`: a GPU that trains nothing, else the CPU.
        behaviour_policy (`str`, defaults to `"decoupled"`): the policy that ratios compare with, if
            the sampler is separate. `"decoupled"`: the trainer's own weights before the step, and a
            bounded weight (`vllm_importance_sampling_mode`) corrects from them to the sampler, as
            in AReaL (arXiv 2505.24298, section 5.2). `"sampler"`: the sampler itself by the
            log-probs that it returned, without that weight and without the forward pass for it.
        partial_rollouts (`int`, defaults to 0): with `overlap: one_step`, completions are sampled
            in rounds of so many tokens, and a generation ends when enough groups are done; the
            others go on after the weights have changed. 0: a generation ends with its longest
            completion.
    """

    overlap: Literal["off", "one_step"] = "off"
    sampler: Literal["process"] | None = None
    sampler_device: str | None = None
    behaviour_policy: Literal["decoupled", "sampler"] = "decoupled"
    partial_rollouts: CountOrZero = 0


def separate(v: Mapping[str, Any]) -> bool:
    """Whether something else than the trained model samples."""
    return bool(v["use_vllm"] or v["sampler"] or v.get(SEPARATE_SAMPLER))


def overlap_rules(v: Mapping[str, Any], num_processes: int) -> Iterator[Problem]:
    """A separate sampler plays no episodes, returns kept tokens, and completes whole steps beside
    the trainer.
    """
    given = v["generation_kwargs"] if isinstance(v["generation_kwargs"], dict) else {}
    how = {key: v[key] for key in ("top_k", "top_p", "min_p")} | given
    truncated = v["use_vllm"] and (how["top_k"] or how["top_p"] not in (None, 1) or how["min_p"])
    for key, off in {"overlap": "off", "behaviour_policy": "decoupled"}.items():
        if v[key] == off:
            continue
        if v["environment"] is not None:
            yield Problem(
                f"{key}: {v[key]} does not play environments yet: take one of the two out.", key
            )
        if not separate(v):
            yield Problem(
                f"{key}: {v[key]} needs a separate sampler: write sampler: process, or vllm_mode: "
                "server.",
                key,
            )
        if truncated:
            words = (
                "needs the tokens that truncation kept, which vLLM does not return: set "
                "top_k: 0, top_p: 1.0, min_p: null."
            )
            yield Problem(f"{key}: {v[key]} {words}", key)
    if v["overlap"] == "off":
        return
    batch = batch_of(v, num_processes)
    if batch.passes % batch.gradient_accumulation_steps:
        words = f"steps_per_generation x num_iterations ({batch.passes})"
        yield Problem(
            f"overlap: one_step needs {words} to be a multiple of gradient_accumulation_steps.",
            "overlap",
        )


def partial_rollout_rules(v: Mapping[str, Any], num_processes: int) -> Iterator[Problem]:
    """Completions go on after whole rounds, in whole groups, and end by a token or at the limit."""
    key = "partial_rollouts"
    tokens = v["partial_rollouts"]
    longest = v["max_completion_length"]
    if not tokens:
        return
    if not longest or longest % tokens:
        yield Problem(
            f"{key}: {tokens} does not divide max_completion_length ({longest}), where the last "
            "round ends.",
            key,
        )
    if batch_of(v, num_processes).completions // num_processes % v["num_generations"]:
        yield Problem(
            f"{key} needs whole groups in each process, a multiple of num_generations completions.",
            key,
        )
    # a round would take its own end for that of the completion, or begin each time with the same
    # noise
    ends = (
        "seed stop stop_strings stop_token_ids max_tokens max_new_tokens min_tokens "
        "min_new_tokens begin_suppress_tokens"
    )
    if (
        found := {*ends.split(), "forced_bos_token_id", "forced_eos_token_id"}
        & (v["generation_kwargs"] or {}).keys()
    ):
        yield Problem(
            f"{key} does not go with {', '.join(sorted(found))} in generation_kwargs: take it out.",
            key,
        )
