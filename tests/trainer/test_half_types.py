"""Sampler and scorer compute in the same number types, and their logits are not rounded."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
)

from grpo_ext.seams.precision import Precision, choose_precision, computing_in, sampling_in
from tests.support.half_trainer import half_trainer

HALF_TYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["weights", "autocast"])
def test_logits_of_the_sampler_are_not_rounded(tiny_folder, dtype, mixed):
    weights = torch.float32 if mixed else dtype
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=weights)
    seen = []
    model.model.norm.register_forward_hook(lambda _, inputs, hidden: seen.append(hidden))
    ids = torch.arange(2, 14).view(2, 6)
    head = model.lm_head
    precision = Precision(mixed=dtype if mixed else None)
    with torch.no_grad(), sampling_in(precision, model):
        logits = model(input_ids=ids).logits
    assert model.lm_head is head
    [hidden] = seen
    weight = model.lm_head.weight.to(dtype).double()
    exact = hidden.to(dtype).double() @ weight.t()
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-6)


def test_the_head_multiplies_in_float32_if_asked(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    seen = []
    model.model.norm.register_forward_hook(lambda _, inputs, hidden: seen.append(hidden))
    precision = Precision(mixed=torch.bfloat16, whole_head=True)
    with torch.no_grad(), sampling_in(precision, model):
        logits = model(input_ids=torch.arange(2, 8).view(1, 6)).logits
    [hidden] = seen
    exact = hidden.double() @ model.lm_head.weight.double().t()
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-6)


def test_results_of_layers_are_added_in_float32(tiny_folder):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    added = []
    body = model.model
    for module in [body.embed_tokens, *[layer.self_attn.o_proj for layer in body.layers]]:
        module.register_forward_hook(lambda _, inputs, output: added.append(output))
    for layer in body.layers:
        layer.mlp.down_proj.register_forward_hook(lambda _, inputs, output: added.append(output))
    sums = []
    body.norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    precision = choose_precision(model, None, False, None)
    assert precision == Precision(torch.bfloat16, torch.float32, whole_attention=True)
    cache = DynamicCache()
    with torch.no_grad(), computing_in(precision, model):
        model(input_ids=torch.arange(2, 14).view(2, 6), past_key_values=cache)
    assert len(added) == 1 + 2 * len(body.layers)
    exact = sum(output.double() for output in added)
    torch.testing.assert_close(sums[0].double(), exact, rtol=1e-6, atol=1e-6)
    assert not any(module._forward_hooks for module in (body.rotary_emb, model.lm_head))
    for layer in cache.layers:
        assert layer.keys.dtype == layer.values.dtype == torch.bfloat16


def logits_and_gradients(folder, converts=False, checkpoints=False, **adapter):
    """Of a bfloat16 model with an adapter, and how many of its layers do not convert their inputs.

    With `converts`, all layers do.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if checkpoints:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **adapter)
    model = get_peft_model(model, config).train()
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    ids = torch.arange(2, 26).view(2, 12)
    with computing_in(choose_precision(model, torch.bfloat16, False, None), model):
        unconverted = sum(not layer.cast_input_dtype_enabled for layer in layers)
        if converts:
            for layer in layers:
                layer.cast_input_dtype_enabled = True
        torch.manual_seed(1)  # of dropout
        output = model(input_ids=ids, labels=ids)
    assert all(layer.cast_input_dtype_enabled for layer in layers)
    output.loss.backward()
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    return output.logits, [weights.grad for weights in trained], unconverted


@pytest.mark.parametrize("checkpoints", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize(
    "adapter, layers",
    [({}, 14), ({"use_rslora": True}, 14), ({"use_dora": True}, 0), ({"lora_dropout": 0.5}, 0)],
    ids=str,
)
def test_lora_does_not_widen_inputs_under_autocast(tiny_folder, adapter, layers, checkpoints):
    logits, gradients, unconverted = logits_and_gradients(
        tiny_folder, checkpoints=checkpoints, **adapter
    )
    assert unconverted == layers
    expected_logits, expected_gradients, _ = logits_and_gradients(tiny_folder, True, **adapter)
    assert torch.equal(logits, expected_logits)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        assert torch.equal(gradient, expected)


def distance_of_gradients(folder, residual):
    """Distance of a bfloat16 model's gradient from that of float64, relative to its norm."""
    ids = torch.randint(2, 400, (8, 24), generator=torch.Generator().manual_seed(0))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact = copy.deepcopy(model).double()
    precision = Precision(torch.bfloat16, torch.float32 if residual else None)
    gradients = []
    for each, types in ((model, precision), (exact, Precision())):
        with computing_in(types, each):
            logits = each(input_ids=ids).logits
        log_p = logits[:, :-1].double().log_softmax(-1)
        log_p.gather(-1, ids[:, 1:, None]).mean().backward()
        gradients.append([parameter.grad.double() for parameter in each.parameters()])
    difference = sum((a - b).square().sum() for a, b in zip(*gradients, strict=True))
    return float((difference / sum(b.square().sum() for b in gradients[1])).sqrt())


def test_the_gradient_comes_nearer_to_that_of_float64(tiny_folder):
    assert distance_of_gradients(tiny_folder, True) < distance_of_gradients(tiny_folder, False)


def test_a_model_whose_norms_would_not_take_float32_is_left_as_it_is():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=1)).bfloat16()
    assert choose_precision(model, None, False, None).residual is None
    with pytest.raises(ValueError, match="`residual_in_fp32: true` cannot be used with this model"):
        choose_precision(model, None, False, True)
    mixed = choose_precision(model.float(), torch.bfloat16, False, True)
    assert mixed == Precision(torch.bfloat16, whole_attention=True)


def dtypes_of_passes(trainer):
    """Train, and return the dtypes that a layer returned in sampling and in scoring."""
    passes = defaultdict(set)

    def note(layer, inputs, output):
        passes["scoring" if torch.is_grad_enabled() else "sampling"].add(output.dtype)

    for name, module in trainer.model.named_modules():
        if name.endswith("layers.0.mlp.down_proj"):
            module.register_forward_hook(note)
    trainer.train()
    return passes


@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
@pytest.mark.parametrize("mixed", [False, True], ids=["weights", "autocast"])
def test_sampler_and_scorer_compute_in_the_same_type(tiny_folder, tmp_path, lora, mixed):
    weights = torch.float32 if mixed else torch.bfloat16
    trainer = half_trainer(tiny_folder, tmp_path, weights, lora=lora, bf16=mixed)
    assert dtypes_of_passes(trainer) == {
        "sampling": {torch.bfloat16},
        "scoring": {torch.bfloat16},
    }
    [entry] = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["sampling/logp_difference/max"] < 0.05


@pytest.mark.usefixtures("sampler_forks")
@pytest.mark.parametrize("mixed", [False, True], ids=["weights", "autocast"])
def test_the_sampler_process_computes_in_the_trainers_type(tiny_folder, tmp_path, mixed):
    weights = torch.float32 if mixed else torch.bfloat16
    settings = {"sampler": "process", "bf16": mixed, "cast_lm_head_to_fp32": True}
    trainer = half_trainer(tiny_folder, tmp_path, weights, **settings)
    trainer.train()
    [entry] = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entry["sampling/logp_difference/max"] < 0.05


def test_logits_of_a_quantized_or_adapted_head_are_its_own(tiny_folder):
    class OwnHead(nn.Linear):
        pass

    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    head = model.lm_head
    own = OwnHead(head.in_features, head.out_features, bias=False, dtype=torch.bfloat16)
    model.lm_head = own
    with torch.no_grad(), sampling_in(Precision(), model):
        assert model.lm_head is own
        assert model(input_ids=torch.arange(2, 8).view(1, 6)).logits.dtype == torch.bfloat16
