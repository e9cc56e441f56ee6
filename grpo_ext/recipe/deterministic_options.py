"""The option `deterministic`, and the rules for options that do not work with it.

With it, the log-probs of the sampler and the trainer are bitwise equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_ext.recipe.folder import sharding
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Rule, refuses
from grpo_ext.recipe.typed_values import Values

# keys that do not work with `deterministic: true`, each with the error message
NOT_DETERMINISTIC = {
    "use_vllm": (
        "use_vllm does not work with `deterministic: true`, because vLLM's kernels round log-probs "
        "differently from the trainer's, even with VLLM_BATCH_INVARIANT. Remove use_vllm, or set "
        "`deterministic: false`."
    ),
    "use_transformers_continuous_batching": (
        "use_transformers_continuous_batching does not work with `deterministic: true`, because "
        "its paged attention sums in a different order from the trainer's attention. Remove "
        "use_transformers_continuous_batching, or set `deterministic: false`."
    ),
    "sampler": (
        "sampler does not work with `deterministic: true`, which needs the trained model itself to "
        "sample, not a copy of it in another process. Remove sampler, or set "
        "`deterministic: false`."
    ),
    "gradient_checkpointing": (
        "gradient_checkpointing does not work with `deterministic: true`, because the backward "
        "pass would recompute activations with operations other than those of the forward pass. "
        "Set `gradient_checkpointing: false`, or `deterministic: false`."
    ),
    "torch_compile": (
        "torch_compile does not work with `deterministic: true`, because the order in which "
        "compiled code sums depends on the shapes of tensors. Remove torch_compile, or set "
        "`deterministic: false`."
    ),
    "use_liger_kernel": (
        "use_liger_kernel does not work with `deterministic: true`, because both would replace the "
        "same operations of the model. Remove use_liger_kernel, or set `deterministic: false`."
    ),
    "load_in_4bit": (
        "load_in_4bit does not work with `deterministic: true`, because multiplications by "
        "quantized weights are rounded differently for different numbers of rows. Remove "
        "load_in_4bit, or set `deterministic: false`."
    ),
    "load_in_8bit": (
        "load_in_8bit does not work with `deterministic: true`, because multiplications by "
        "quantized weights are rounded differently for different numbers of rows. Remove "
        "load_in_8bit, or set `deterministic: false`."
    ),
}


@dataclass
class DeterministicOptions:
    """The recipe key for bitwise equal log-probs; a base of `GRPOExtConfig`.

    Args:
        deterministic (`bool`, defaults to `False`): whether the trainer's log-prob of each sampled
            token is bitwise equal to the sampler's, whatever the batch and layout. The run ends if
            any of them differs. torch is limited to deterministic algorithms. This option works
            only on a CPU, with transformers' `generate` and `sdpa` attention; `docs/log-probs.md`
            lists its other requirements and its cost.
    """

    deterministic: bool = False


def parts_that_are_not_deterministic(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each option in `NOT_DETERMINISTIC` set with `deterministic: true`."""
    if not v.deterministic:
        return
    for key, message in NOT_DETERMINISTIC.items():
        if v.has(key) and v[key]:
            yield Problem(message, key)


@refuses(
    "attn_implementation",
    "`deterministic: true` works only with `sdpa` attention, but this recipe uses "
    "{attn_implementation}. Set `attn_implementation: sdpa`, or `deterministic: false`.",
)
def equal_bits_of_another_attention(v: Values) -> object:
    return v.deterministic and v.attn_implementation not in (None, "sdpa")


@refuses(
    "accelerate_config",
    "`deterministic: true` does not work with DeepSpeed or FSDP, which call the model in their "
    "own way. Set `accelerate_config: cpu`, or `deterministic: false`.",
)
def equal_bits_of_a_sharded_model(v: Values) -> object:
    return v.deterministic and sharding(v)


RULES: tuple[Rule, ...] = (
    Dependency(
        "deterministic",
        (False,),
        {
            "use_cpu": (True,),
            "logprob_policy": ("sampling",),
            "disable_dropout": (True,),
            **STEP_NORMALIZATION,
        },
    ),
    parts_that_are_not_deterministic,
    equal_bits_of_another_attention,
    equal_bits_of_a_sharded_model,
)
