"""The lines of advice: each names keys of a recipe that are real, for what was measured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from grpo_ext.numerics.advice import advice
from grpo_ext.numerics.distances import Distance
from grpo_ext.numerics.edges import Edges
from grpo_ext.numerics.measure import FLOAT32, SAMPLER, Comparison, Measurement
from grpo_ext.recipe.load import load_recipe

CLOSE = Distance(100, 1e-9, 1e-10, 1e-5, 1e-4, 0.0, 0)
ROUNDED = replace(CLOSE, kl=0.002, mean=0.05, share_far=0.07)
WRONG = replace(CLOSE, kl=0.2, mean=0.4, share_far=0.8)
HALF = Measurement(
    weights="bfloat16", autocast="no", attention="sdpa", device="cpu", sampler="transformers"
)
CAST = {"residual_in_fp32": True, "attention_in_fp32": True, "cast_lm_head_to_fp32": True}


def lines(found, **settings):
    recipe = load_recipe(None, {"model_name_or_path": "m", **settings})
    told = list(advice(found, recipe.flat))
    for line in told:
        for key in re.findall(r"`([a-z_0-9]+): [^`]+`", line):
            assert recipe.flat.has(key), key
    return told


def compared(part, apart, **more):
    name = {"sampler": SAMPLER, "float32": FLOAT32}.get(part, "8 rows, packed")
    return replace(HALF, comparisons=[Comparison(part, name, apart)], **more)


def test_what_is_within_its_limits_needs_nothing():
    for part in ("sampler", "trainer", "float32"):
        assert lines(compared(part, CLOSE)) == []
        assert lines(compared(part, None)) == []


@pytest.mark.parametrize(
    "settings, device, named",
    [
        ({}, "cpu", "cast_lm_head_to_fp32: true"),
        ({}, "cuda:0", "residual_in_fp32: true"),
        ({"residual_in_fp32": False}, "cpu", "residual_in_fp32: true"),
        ({"attention_in_fp32": False}, "cpu", "attention_in_fp32: true"),
        ({"residual_in_fp32": True}, "cuda:0", "attention_in_fp32: true"),
        (
            {"residual_in_fp32": True, "attention_in_fp32": True},
            "cuda:0",
            "cast_lm_head_to_fp32: true",
        ),
        (CAST, "cpu", "dtype: float32"),
        (CAST, "cuda:0", "fp16: true"),
        ({**CAST, "fp16": True, "bf16": False}, "cuda:0", "dtype: float32"),
    ],
)
def test_rounding_is_answered_with_the_cheapest_type_that_is_left(settings, device, named):
    for part in ("sampler", "trainer", "float32"):
        [line] = lines(compared(part, ROUNDED, device=device), **settings)
        assert f"`{named}`" in line


def test_another_attention_than_sdpa_is_not_asked_for_float32():
    found = compared("sampler", ROUNDED, device="cuda:0", attention="flash_attention_2")
    [line] = lines(found, residual_in_fp32=True)
    assert "attention_in_fp32" not in line


def test_a_head_that_cannot_be_cast_is_not_named():
    [line] = lines(compared("sampler", ROUNDED, can_cast_head=False))
    assert "cast_lm_head_to_fp32" not in line and "`dtype: float32`" in line


def test_parts_with_the_same_remedy_share_a_line():
    names = {"sampler": SAMPLER, "trainer": "8 rows, packed", "float32": FLOAT32}
    comparisons = [Comparison(part, name, ROUNDED) for part, name in names.items()]
    [line] = lines(replace(HALF, comparisons=comparisons))
    assert line.startswith("sampler against trainer, trainer against itself, float32 copy: set")


def test_more_than_rounding_is_not_answered_with_types():
    [line] = lines(compared("sampler", WRONG))
    assert "more than rounding" in line and "dtype" not in line
    [line] = lines(compared("sampler", ROUNDED, weights="float32"))
    assert "more than rounding" in line
    [line] = lines(compared("trainer", ROUNDED, weights="float32"))
    assert "layout: padded" in line


@pytest.mark.parametrize("corrected", [True, False])
def test_a_separate_engine_is_corrected(corrected):
    found = compared("sampler", ROUNDED, separate_engine=True)
    [line] = lines(found, vllm_importance_sampling_correction=corrected)
    assert ("VLLM_BATCH_INVARIANT=1" in line) == corrected
    assert ("`vllm_importance_sampling_correction: true`" in line) != corrected


def test_kept_sets_need_a_key_only_where_the_sampler_does_not_return_them():
    edges = Edges(100, None, None, None, beyond=0.05)
    [line] = lines(replace(HALF, edges=edges))
    assert "top_k, top_p and min_p" in line
    [line] = lines(replace(HALF, edges=edges, returns_kept_tokens=True))
    assert "nothing to set" in line
