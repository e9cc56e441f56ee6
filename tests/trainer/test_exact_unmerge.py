"""Merging an adapter for an engine, and taking it out again, leaves the base as it was."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from grpo_ext.samplers.exact_unmerge import base_kept


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_base_comes_back_to_the_bit(tiny_folder, dtype, dora):
    torch.manual_seed(0)
    adapter = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False, use_dora=dora)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=dtype), adapter)
    ids = torch.arange(8)[None]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    logits = model(ids).logits
    for _ in range(3):
        with base_kept(model):
            model.merge_adapter()
            merged = model(ids).logits
            assert not torch.equal(model.get_parameter(first(before)), before[first(before)])
            model.unmerge_adapter()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.equal(model(ids).logits, logits)
    torch.testing.assert_close(
        merged, logits, atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0
    )
    model.merge_adapter()
    model.unmerge_adapter()
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert changed and all(".base_layer." in name for name in changed)  # the control


def first(names):
    return next(name for name in names if ".base_layer." in name)
