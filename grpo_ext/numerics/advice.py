"""Say which recipe keys to set if parts of a measurement exceed their limits."""

from collections.abc import Iterator

from grpo_ext.common.mismatch_bars import NOT_ROUNDING
from grpo_ext.common.pages import DOES_NOT_LEARN
from grpo_ext.numerics.measure import Comparison, Measurement
from grpo_ext.recipe.typed_values import Values

OTHER_POLICY = (
    "this is more than rounding: the sampler may use other weights or another temperature, or "
    "dropout may be on. Keep the defaults `logprob_policy: sampling` and `disable_dropout: true`. "
    f"See {DOES_NOT_LEARN}#sampler-and-trainer-differ."
)
WRONG_LAYOUT = (
    "the trainer computes in float32, but its passes differ. If `disable_dropout: false` is set, "
    "remove it. Otherwise, a layout or gradient checkpointing is wrong for this model: set "
    "`layout: padded`, and report the model to the developers of grpo_ext."
)


def advice(found: Measurement, v: Values) -> Iterator[str]:
    """Yield lines of advice for the parts of a measurement that exceed their limits.

    Each line names parts and their remedy, as in "kept sets: the sampler does not return ...".
    Parts with the same remedy share a line.

    Args:
        found: the measurement of the recipe.
        v: the values of the recipe.
    """
    outside = {comparison.part for comparison in found.comparisons if comparison.exceeded}
    parts_of: dict[str, list[str]] = {}  # the parts that a remedy is for
    if "sampler" in outside:
        parts_of.setdefault(sampler_advice(found, v), []).append("sampler against trainer")
    if "trainer" in outside:
        remedy = type_advice(found, v) if found.half else WRONG_LAYOUT
        parts_of.setdefault(remedy, []).append("trainer against itself")
    if "float32" in outside:
        parts_of.setdefault(type_advice(found, v), []).append("float32 copy")
    if found.edges is not None and found.edges.exceeded:
        parts_of.setdefault(edge_advice(found), []).append("kept sets")
    for remedy, parts in parts_of.items():
        yield f"{', '.join(parts)}: {remedy}"


def sampler_advice(found: Measurement, v: Values) -> str:
    """Return advice for a recipe whose sampler's log-probs are too far from the trainer's."""
    kl = max(kl_of(comparison) for comparison in found.comparisons if comparison.part == "sampler")
    if not found.half or kl > NOT_ROUNDING.limit:
        return OTHER_POLICY
    if not found.separate_engine:
        return type_advice(found, v)
    if not v.vllm_importance_sampling_correction:
        return (
            "set `vllm_importance_sampling_correction: true`, which weights each token by the "
            "ratio of the two probabilities."
        )
    return (
        "the correction is on (`vllm_importance_sampling_mode: "
        f"{v.vllm_importance_sampling_mode}`). To reduce the difference, start the engine with the "
        "environment variable VLLM_BATCH_INVARIANT=1 if its GPU supports it, or "
        f"{type_advice(found, v)}"
    )


def type_advice(found: Measurement, v: Values) -> str:
    """Return the cheapest remedy against rounding that the recipe does not use yet."""
    if adds_up_in_half(found, v):
        return "set `residual_in_fp32: true`, which keeps the residual stream in float32."
    if found.attention == "sdpa" and not is_on(v["attention_in_fp32"], found):
        return "set `attention_in_fp32: true`, which computes attention in float32 or float64."
    if found.can_cast_head and not v.cast_lm_head_to_fp32:
        return "set `cast_lm_head_to_fp32: true`, which computes the logits in float32."
    if found.device.startswith("cuda") and not v.fp16:
        return (
            "set `fp16: true`, `bf16: false` and `dtype: float32`: float16 has three more bits "
            "of precision than bfloat16."
        )
    return "set `dtype: float32`, `bf16: false` and `fp16: false`."


def adds_up_in_half(found: Measurement, v: Values) -> bool:
    """Return whether the model sums its residual stream in half precision."""
    return found.weights != "float32" and not is_on(v["residual_in_fp32"], found)


def is_on(option: bool | None, found: Measurement) -> bool:
    """Return whether an option was on in a measurement; `None` means on if the device was a CPU."""
    return found.device == "cpu" if option is None else option


def edge_advice(found: Measurement) -> str:
    """Return advice for a recipe in which too many sampled tokens are outside the trainer's sets.

    The trainer's sets are the tokens that top_k, top_p and min_p keep with its own logits.
    """
    if found.returns_kept_tokens:
        return (
            "there is nothing to set: the sampler returns the tokens that it kept, and the trainer "
            "scores over these. Without them, some sampled tokens would be scored as impossible."
        )
    return (
        "the sampler does not return the sets of tokens that its truncation kept, so the trainer "
        "computes them itself, and too many sampled tokens are outside them. Remove top_k, top_p "
        "and min_p, or sample with transformers."
    )


def kl_of(comparison: Comparison) -> float:
    """Return the KL divergence of a comparison; 0 if it was not measured."""
    return comparison.distance.kl if comparison.distance else 0.0
