"""`attention_in_fp32`: attention in float32 where a model computes in a half type."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from grpo_ext.recipe.rules import check_values, flat_values
from grpo_ext.recipe.schema import GRPO_CLASSES
from grpo_ext.recipe.scoring_options import RULES
from grpo_ext.scoring.layout import attention_of
from grpo_ext.seams.attention import sdpa_in_fp32
from grpo_ext.seams.precision import Precision, choose_precision, computing_in
from tests.support.half_trainer import half_trainer
from tests.support.tiny_models import make_model

HALF_TYPES = [torch.bfloat16, torch.float16]
IN_FP32 = Precision(torch.bfloat16, torch.float32, whole_attention=True)


def attention_of_formula(query, key, value, seen):
    """softmax(q k^T / sqrt(D)) v in float64; each key serves several heads."""
    groups = query.size(1) // key.size(1)
    key, value = (each.double().repeat_interleave(groups, 1) for each in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / query.size(-1) ** 0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 12])
@pytest.mark.parametrize("added", [False, True], ids=["bool", "added"])
def test_the_formula_is_met_to_the_last_bit_of_the_half_type(dtype, queries, added):
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.num_key_value_groups = 3
    query = torch.randn(2, 6, queries, 8, dtype=dtype)
    key, value = (torch.randn(2, 2, 12, 8, dtype=dtype) for _ in range(2))
    seen = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()[:, :, -queries:]
    seen[0, :, :, :1] = queries > 1
    mask = seen
    if added:
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    with torch.autocast("cpu", dtype=dtype):
        output, _ = sdpa_in_fp32(layer, query, key, value, mask)
    assert output.dtype == dtype
    exact = attention_of_formula(query, key, value, seen).to(dtype)
    assert torch.equal(output, exact)


def test_a_mask_of_each_head_is_met_too():
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.num_key_value_groups = 3
    query = torch.randn(2, 6, 1, 8, dtype=torch.bfloat16)
    key, value = (torch.randn(2, 2, 12, 8, dtype=torch.bfloat16) for _ in range(2))
    seen = torch.rand(2, 6, 1, 12) < 0.5
    output, _ = sdpa_in_fp32(layer, query, key, value, seen)
    assert torch.equal(output, attention_of_formula(query, key, value, seen).bfloat16())


@pytest.mark.parametrize("queries", [1, 12])
@pytest.mark.parametrize("groups", [1, 3])
def test_the_gradient_is_that_of_the_formula(queries, groups):
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.num_key_value_groups = groups
    query = torch.randn(2, 6, queries, 8, dtype=torch.bfloat16, requires_grad=True)
    shape = (2, 6 // groups, 12, 8)
    key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    seen = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()[:, :, -queries:]
    weights = torch.randn(2, queries, 6, 8, dtype=torch.bfloat16)
    output, _ = sdpa_in_fp32(layer, query, key, value, seen)
    gradients = torch.autograd.grad(output, (query, key, value), weights)
    formula = attention_of_formula(query, key, value, seen)
    expected = torch.autograd.grad(formula, (query, key, value), weights.double())
    for gradient, exact in zip(gradients, expected, strict=True):
        assert (gradient - exact).abs().max() <= 2**-7 * exact.abs().max()  # bfloat16


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_the_order_of_the_keys_does_not_move_a_result(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Module()
    layer.num_key_value_groups = 1
    query, key, value = (torch.randn(4, 4, 300, 16, dtype=dtype) for _ in range(3))
    seen = torch.ones(4, 1, 300, 300, dtype=torch.bool).tril()
    output, _ = sdpa_in_fp32(layer, query, key, value, seen)
    order = torch.randperm(300)
    other, _ = sdpa_in_fp32(layer, query, key[:, :, order], value[:, :, order], seen[..., order])
    assert torch.equal(output, other)


def logps_by_token_and_in_rows(folder, precision):
    """Log-probs of the same tokens, read one at a time with a cache and as whole rows."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    ids = torch.randint(2, 400, (16, 40), generator=torch.Generator().manual_seed(0))
    cache = DynamicCache()
    steps = []
    with torch.no_grad(), computing_in(precision, model):
        rows = model(input_ids=ids).logits
        for place in range(ids.size(1)):
            one = ids[:, place : place + 1]
            steps.append(model(input_ids=one, past_key_values=cache).logits)
    targets = ids[:, 1:, None]
    by_token = torch.cat(steps, dim=1)[:, :-1].double().log_softmax(-1).gather(-1, targets)
    in_rows = rows[:, :-1].double().log_softmax(-1).gather(-1, targets)
    return by_token, in_rows


def test_a_token_with_a_cache_comes_nearer_to_a_row(tiny_folder):
    distances = []
    for whole in (True, False):
        precision = Precision(torch.bfloat16, torch.float32, whole_attention=whole)
        by_token, in_rows = logps_by_token_and_in_rows(tiny_folder, precision)
        distances.append(float((by_token - in_rows).abs().mean()))
    assert distances[0] < 0.9 * distances[1]


def test_it_is_on_for_a_half_type_on_a_cpu_only(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    assert choose_precision(model, None, False, None).whole_attention
    assert not choose_precision(model, None, False, None, False).whole_attention
    assert not choose_precision(model.to("meta"), None, False, None).whole_attention
    whole = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    assert choose_precision(whole, torch.bfloat16, False, None).whole_attention
    assert not choose_precision(whole, None, False, None, True).whole_attention


def test_another_attention_is_left_as_it_is(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(
        tiny_folder, dtype=torch.bfloat16, attn_implementation="eager"
    )
    assert not choose_precision(model, None, False, None).whole_attention
    with pytest.raises(ValueError, match=r"`attention_in_fp32: true` cannot be used .*eager"):
        choose_precision(model, None, False, None, True)


def test_a_model_returns_to_the_attention_it_was_loaded_with():
    model = make_model().to(torch.bfloat16)
    with computing_in(IN_FP32, model):
        assert model.config._attn_implementation == "sdpa_in_fp32"
    assert attention_of(model) == "sdpa"
    assert "sdpa_in_fp32" not in model.config.to_json_string()
    with computing_in(Precision(), model):
        assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("layout", ["padded", "chunks", "packed"])
def test_a_run_with_checkpointing_samples_and_scores_alike(tiny_folder, tmp_path, layout):
    trainer = half_trainer(
        tiny_folder, tmp_path, torch.bfloat16, layout=layout, gradient_checkpointing=True
    )
    trainer.train()
    assert trainer.model.config._attn_implementation == "sdpa_in_fp32"
    [entry] = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["grad_norm"] > 0
    assert entry["sampling/logp_difference/max"] < 0.05


@pytest.mark.parametrize(
    "settings, key, words",
    [
        ({"attn_implementation": "eager"}, "attn_implementation", "this recipe uses eager"),
        (
            {"use_transformers_continuous_batching": True},
            "use_transformers_continuous_batching",
            "paged attention of continuous batching",
        ),
        ({"loss_normalization": "micro_batch"}, "attention_in_fp32", "loss_normalization: step"),
    ],
)
def test_refused_by_name(settings, key, words):
    def problems(**values):
        return check_values(flat_values({"any": values}, GRPO_CLASSES), RULES, {}, num_processes=1)

    [problem] = problems(attention_in_fp32=True, **settings)
    assert problem.key == key
    assert words in str(problem)
    assert problems(attention_in_fp32=None, **settings) == []
