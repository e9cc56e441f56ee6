"""Runs with `deterministic: true`: no bit of a log-prob differs between sampler and trainer."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.vllm import EngineFailure
from tests.support import episode_run
from tests.support.deterministic_run import make
from tests.support.logs import entries_with
from tests.support.tiny_models import make_model


def assert_equal(trainer, num_steps=2):
    steps = entries_with(trainer, "loss")
    assert len(steps) == num_steps
    for step in steps:
        assert step["sampling/logp_difference/max"] == 0.0
        assert step["sampling/ratio/min"] == step["sampling/ratio/max"] == 1.0
        assert step["grad_norm"] > 0


def test_a_run(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, top_k=20, top_p=0.9, temperature=0.7)
    assert not trainer.args.gradient_checkpointing
    trainer.train()
    assert_equal(trainer)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"num_iterations": 2, "beta": 0.1, "gradient_accumulation_steps": 2, "layout": "packed"},
        {"dtype": torch.bfloat16, "min_p": 0.1, "layout": "padded"},
        {"bf16": True, "top_p": 0.9},
        {"dtype": torch.bfloat16, "residual_in_fp32": False, "cast_lm_head_to_fp32": True},
        {"group_filter": "refill", "max_tokens_per_micro_batch": 60, "fast_generate": False},
    ],
    ids=["several_updates", "bfloat16", "mixed_precision", "whole_head", "refill"],
)
def test_other_runs(tiny_folder, tmp_path, settings):
    trainer = make(tiny_folder, tmp_path, **settings)
    trainer.train()
    assert_equal(trainer)


@pytest.mark.slow
def test_an_adapter_whose_reference_is_the_policy_at_first(tiny_folder, tmp_path):
    adapter = LoraConfig(r=4, target_modules="all-linear")
    trainer = make(tiny_folder, tmp_path, peft_config=adapter, beta=0.1, top_p=0.9)
    trainer.train()
    assert_equal(trainer)
    first, second = entries_with(trainer, "kl")
    assert first["kl"] == 0.0 < second["kl"]


@pytest.mark.slow
def test_episodes(tiny_folder, tmp_path):
    trainer = episode_run.make(tiny_folder, tmp_path, deterministic=True, top_k=20)
    trainer.train()
    assert_equal(trainer, num_steps=3)


def test_a_layer_that_depends_on_the_batch_ends_the_run(tiny_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, output: output * (1 + 1e-5 * output.size(1))
    )
    trainer = make(tiny_folder, tmp_path, model)
    before = [weight.clone() for weight in model.parameters()]
    with pytest.raises(EngineFailure, match="sampler and trainer differ"):
        trainer.train()
    assert trainer.state.global_step == 0
    assert all(map(torch.equal, before, model.parameters()))


class Other(Sampler):
    name = "other"
    abilities = SamplerAbilities()


def test_other_samplers_and_models_are_refused(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="arguments `sampler` and `rollout_func`"):
        make(tiny_folder, tmp_path, sampler=Other())
    with pytest.raises(ValueError, match="at most 32768 tokens"):
        make(tiny_folder, tmp_path, max_completion_length=2**15)
    eager = AutoModelForCausalLM.from_pretrained(tiny_folder, attn_implementation="eager")
    with pytest.raises(ValueError, match="this model uses eager"):
        make(tiny_folder, tmp_path, eager)
    vocabulary = len(AutoTokenizer.from_pretrained(tiny_folder))
    with pytest.raises(ValueError, match="rotary positions"):
        make(tiny_folder, tmp_path, make_model("opt", vocab_size=vocabulary))
    own = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    own.generate = lambda input_ids, **kwargs: torch.nn.functional.pad(input_ids, (0, 3), value=5)
    with pytest.raises(ValueError, match="whose own `generate`"):
        make(tiny_folder, tmp_path, own).train()
