"""`deterministic: true` refuses, by name, what cannot give equal bits."""

from __future__ import annotations

import pytest

from grpo_ext.recipe.deterministic_options import NOT_DETERMINISTIC, RULES
from grpo_ext.recipe.rules import check_values, flat_values
from grpo_ext.recipe.schema import GRPO_CLASSES

SOUND = {"deterministic": True, "use_cpu": True}
REFUSED = {
    "vllm": ({"use_vllm": True}, "use_vllm", "even with VLLM_BATCH_INVARIANT"),
    "paged": (
        {"use_transformers_continuous_batching": True},
        "use_transformers_continuous_batching",
        "paged attention",
    ),
    "process": ({"sampler": "process"}, "sampler", "Remove sampler"),
    "checkpointing": (
        {"gradient_checkpointing": True},
        "gradient_checkpointing",
        "Set `gradient_checkpointing: false`",
    ),
    "compiled": ({"torch_compile": True}, "torch_compile", "Remove torch_compile"),
    "liger": ({"use_liger_kernel": True}, "use_liger_kernel", "Remove use_liger_kernel"),
    "four_bits": ({"load_in_4bit": True}, "load_in_4bit", "Remove load_in_4bit"),
    "eight_bits": ({"load_in_8bit": True}, "load_in_8bit", "Remove load_in_8bit"),
    "eager": (
        {"attn_implementation": "eager"},
        "attn_implementation",
        "but this recipe uses eager. Set `attn_implementation: sdpa`",
    ),
    "zero2": ({"accelerate_config": "zero2"}, "accelerate_config", "`accelerate_config: cpu`"),
    "fsdp": ({"accelerate_config": "fsdp2"}, "accelerate_config", "`accelerate_config: cpu`"),
    "gpu": ({"use_cpu": False}, "deterministic", "needs `use_cpu: true`"),
    "policy": ({"logprob_policy": "trl"}, "deterministic", "needs `logprob_policy: sampling`"),
    "dropout": ({"disable_dropout": False}, "deterministic", "needs `disable_dropout: true`"),
    "trl": (
        {"loss_normalization": "micro_batch"},
        "deterministic",
        "needs `loss_normalization: step`",
    ),
}


def problems(**values):
    return check_values(flat_values({"any": values}, GRPO_CLASSES), RULES, {}, num_processes=1)


@pytest.mark.parametrize("values, key, words", REFUSED.values(), ids=REFUSED)
def test_refused_by_name(values, key, words):
    [problem] = problems(**{**SOUND, **values})
    assert problem.key == key
    assert words in str(problem)
    assert problems(**{**SOUND, **values, "deterministic": False}) == []


def test_each_refused_key_has_its_case():
    assert {key for _, key, _ in REFUSED.values()} >= set(NOT_DETERMINISTIC)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"bf16": True},
        {"gradient_checkpointing": False, "attn_implementation": "sdpa", "dtype": "bfloat16"},
        {"layout": "packed", "fast_generate": False, "beta": 0.1, "num_iterations": 2},
        {"use_peft": True, "group_filter": "refill", "accelerate_config": "cpu"},
    ],
)
def test_everything_else_works(values):
    assert problems(**{**SOUND, **values}) == []
