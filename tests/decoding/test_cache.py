"""Keys and values written in place are those that transformers' own cache holds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    QuantizedCache,
    StaticCache,
)

from grpo_ext.decoding import decode as decoding_cache
from grpo_ext.decoding.checks import has_selectable_rows
from grpo_ext.decoding.decode import BufferedLayer, expand


def states(rows, positions, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, 3, positions, 4, generator=generator)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_same_states_as_a_dynamic_layer(data):
    theirs = DynamicLayer()
    theirs.update(*states(4, data.draw(st.integers(1, 5)), 0))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
    ours = BufferedLayer(theirs, rows)
    theirs.batch_select_indices(rows)
    for seed in range(data.draw(st.integers(0, 12))):
        num = theirs.keys.size(0)
        if data.draw(st.booleans()):
            kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1))))
            theirs.batch_select_indices(kept)
            ours.batch_select_indices(kept)
        new = states(theirs.keys.size(0), data.draw(st.integers(1, 40)), seed)
        for a, b in zip(theirs.update(*new), ours.update(*new), strict=True):
            assert torch.equal(a, b)
        assert theirs.get_seq_length() == ours.get_seq_length()
        assert theirs.get_mask_sizes(1) == ours.get_mask_sizes(1)


def test_a_step_writes_in_place_until_the_buffer_is_full():
    layer = DynamicLayer()
    layer.update(*states(2, 3, 0))
    ours = BufferedLayer(layer, torch.tensor([0, 0, 1]))
    places = [ours.update(*states(3, 1, t))[0].data_ptr() for t in range(decoding_cache.SPARE + 1)]
    assert len(set(places[:-1])) == 1 and places[-1] != places[0]


def test_rows_that_leave_give_their_memory_back():
    layer = DynamicLayer()
    layer.update(*states(8, 3, 0))
    ours = BufferedLayer(layer, torch.arange(8))
    before = ours.keys.untyped_storage().nbytes()
    ours.batch_select_indices(torch.tensor([5]))
    assert ours.keys.untyped_storage().nbytes() == before // 8


def test_layers_with_a_window_stay_transformers_own():
    cache = DynamicCache()
    cache.layers = [DynamicLayer(), DynamicSlidingWindowLayer(sliding_window=4), DynamicLayer()]
    for layer in cache.layers[:2]:  # a layer that shares another's states has none of its own
        layer.update(*states(2, 3, 0))
    assert has_selectable_rows(cache)
    expand(cache, torch.tensor([1, 1, 0]))
    assert [type(layer) for layer in cache.layers] == [
        BufferedLayer,
        DynamicSlidingWindowLayer,
        DynamicLayer,
    ]
    assert torch.equal(cache.layers[0].keys, cache.layers[1].keys)
    assert cache.layers[1].keys.size(0) == 3


def test_other_caches_are_left_alone():
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=8, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8
    )
    assert has_selectable_rows(DynamicCache(config=config))
    assert not has_selectable_rows(StaticCache(config=config, max_cache_len=8))
    assert not has_selectable_rows(None)
    assert QuantizedCache is not DynamicCache
