"""The operations of `deterministic: true`: the bits of a row do not depend on the others.

Values and gradients are torch's.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from grpo_ext.determinism import activations
from grpo_ext.determinism.attention import MOST_KEYS, attention, power_below, rounded
from grpo_ext.determinism.mode import InvariantOperations, deterministic_algorithms
from grpo_ext.determinism.products import linear

TYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def gradients(function, *tensors):
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    output = function(*tensors)
    weight = numbers(*output.shape, seed=9)
    return [output, *torch.autograd.grad((output * weight).sum(), tensors)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_a_row_of_a_product_is_the_same_among_any_others(dtype, biased, threads):
    x = numbers(150, 48, dtype=dtype)
    weight = numbers(96, 48, dtype=dtype, seed=1)
    bias = numbers(96, dtype=dtype, seed=2) if biased else None
    whole = linear(x, weight, bias)
    for start in range(0, 100, 7):
        for count in (1, 2, 3, 5, 9, 31, 32, 33, 50):
            rows = slice(start, start + count)
            assert torch.equal(linear(x[rows], weight, bias), whole[rows])
    assert torch.equal(linear(x.view(5, 30, 48), weight, bias).flatten(0, 1), whole)


def test_products_and_their_gradients_are_torchs():
    x, weight, bias = numbers(3, 17, 48), numbers(96, 48, seed=1), numbers(96, seed=2)
    ours = gradients(linear, x, weight, bias)
    for mine, theirs in zip(ours, gradients(functional.linear, x, weight, bias), strict=True):
        torch.testing.assert_close(mine, theirs)
    frozen = linear(x.clone().requires_grad_(), weight)
    assert frozen.requires_grad and not linear(x, weight).requires_grad


def heads(queries, keys, dtype=torch.float32, groups=2):
    return (
        numbers(3, 2 * groups, queries, 16, dtype=dtype),
        numbers(3, 2, keys, 16, dtype=dtype, seed=1) * 5,
        numbers(3, 2, keys, 16, dtype=dtype, seed=2),
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_attention_depends_only_on_the_keys_that_are_seen(dtype, threads):
    query, key, value = heads(9, 40, dtype)
    seen = torch.ones(9, 40, dtype=torch.bool).tril(31)
    whole = attention(query, key, value, seen, enable_gqa=True)
    for i in range(9):
        one = query[:, :, i : i + 1]
        end = 32 + i
        alone = attention(one, key[:, :, :end], value[:, :, :end], enable_gqa=True)
        assert torch.equal(alone, whole[:, :, i : i + 1])
    for left, right in [(1, 0), (7, 3), (64, 200)]:
        padding = (0, 0, left, right)
        padded_key = functional.pad(key, padding, value=1e3)
        padded_value = functional.pad(value, padding, value=-1e4)
        mask = functional.pad(seen, (left, right))
        assert torch.equal(attention(query, padded_key, padded_value, mask, enable_gqa=True), whole)
        added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
        again = attention(query, padded_key, padded_value, added, enable_gqa=True)
        assert torch.equal(again, whole)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    keys, values = key[:, :, order], value[:, :, order]
    shuffled = attention(query, keys, values, seen[:, order], enable_gqa=True)
    assert torch.equal(shuffled, whole)
    row = attention(query[1:2], key[1:2], value[1:2], seen[None, None], enable_gqa=True)
    assert torch.equal(row, whole[1:2])


@pytest.mark.parametrize("causal", [True, False])
def test_attention_and_its_gradients_are_torchs(causal):
    tensors = heads(24, 24)
    mask = None if causal else torch.rand(3, 1, 24, 24).lt(0.7) | torch.eye(24, dtype=torch.bool)

    def of(function):
        return lambda q, k, v: function(
            q, k, v, attn_mask=mask, is_causal=causal, scale=0.3, enable_gqa=True
        )

    theirs = gradients(of(functional.scaled_dot_product_attention), *tensors)
    for mine, expected in zip(gradients(of(attention), *tensors), theirs, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=3e-5)


def test_a_query_that_sees_nothing_and_values_of_zero_are_no_error():
    query, key, value = heads(2, 3)
    mask = torch.tensor([[False] * 3, [True] * 3])
    output = attention(query, key, value * 0, mask, enable_gqa=True)
    assert torch.equal(output, torch.zeros_like(output))


def test_attention_refuses_what_it_cannot_compute_exactly():
    query, key, value = heads(1, 2)
    with pytest.raises(ValueError, match="attention dropout"):
        attention(query, key, value, dropout_p=0.1, enable_gqa=True)
    many = key[:, :, :1].expand(-1, -1, MOST_KEYS + 1, -1)
    with pytest.raises(ValueError, match=f"at most {MOST_KEYS} tokens"):
        attention(query, many, many, enable_gqa=True)


def test_fewer_heads_of_keys_need_grouped_queries():
    query = torch.ones(1, 4, 2, 8)
    key = torch.ones(1, 2, 2, 8)
    assert attention(query, key, key, enable_gqa=True).shape == query.shape
    with pytest.raises(ValueError, match="The keys have 2 heads, and the queries 4"):
        attention(query, key, key)


def test_rounding_keeps_bits_of_the_largest_number_and_powers_are_exact():
    x = torch.tensor([[1.0, 2**-20, 2**-23, -0.75], [0.0] * 4, [3 * 2.0**90, 1.0, -(2.0**80), 0.0]])
    expected = [[1.0, 2**-20, 0.0, -0.75], [0.0] * 4, [3 * 2.0**90, 0.0, -(2.0**80), 0.0]]
    assert rounded(x, 21).tolist() == expected
    values = torch.tensor([0.0, 1.0, 1.5, 2.0, 7.99, 2**-30])
    assert power_below(values).tolist() == [0.0, 1.0, 1.0, 2.0, 4.0, 2**-30]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["silu", "sigmoid", "gelu", "gelu_tanh"])
def test_an_activation_is_the_same_at_every_place(name, dtype, threads):
    ours = getattr(activations, name.removesuffix("_tanh"))
    theirs = getattr(functional, name.removesuffix("_tanh"))
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    x = numbers(70_001, dtype=dtype) * 20
    whole = ours(x, **options)
    torch.testing.assert_close(whole, theirs(x, **options))
    for start in range(0, 3000, 13):
        assert torch.equal(ours(x[start : start + 13], **options), whole[start : start + 13])
    few = torch.tensor([-200.0, -3.0, 0.0, 3.0, 200.0])
    mine = gradients(lambda x: ours(x, **options), few)
    for value, expected in zip(mine, gradients(lambda x: theirs(x, **options), few), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_torchs_operations_come_back_after_the_context():
    x, weight = numbers(1, 48), numbers(96, 48, seed=1)
    plain = functional.linear(x, weight)
    with InvariantOperations():
        inside = functional.linear(x, weight)
        layer = torch.nn.Linear(48, 96, bias=False)
        layer.weight.data = weight
        assert torch.equal(layer(x), inside) and torch.equal(inside, linear(x, weight))
    assert torch.equal(functional.linear(x, weight), plain)


def test_deterministic_algorithms_are_restored():
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError), deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        1 / 0  # noqa: B018
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
