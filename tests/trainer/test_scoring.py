"""Fewer tokens, the same gradient as plain TRL's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_ext.scoring.layout import caches_every_token
from grpo_ext.scoring.prompts_once import of_rows
from tests.support.step_bench import Bench
from tests.support.step_work import Case

# completions of 4 to 60 tokens, prompts of 120 to 140: worth several chunks and a shared prompt
SMALL = Case(32, 16, 4, (120, 140), (25, 0.9, 60), 0.25, 300, hidden=32)
SETTINGS = {
    "plain": {},
    "KL": {"beta": 0.1},
    "several updates": {"num_iterations": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "entropy bonus": {"entropy_coef": 0.1, "loss_normalization": "step"},
}


def steps(case, **settings):
    bench = Bench(replace(case, settings=tuple(settings.items())))
    return bench, {side: bench.step(side) for side in ("TRL", "ours")}


def apart(a, b):
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_rows_of_shared_prompts_and_the_sums_of_their_gradients(dtype, bound):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5, 4, dtype=dtype, requires_grad=True)
    number = torch.arange(96) * 7 % 3
    by = torch.rand(96, 2, 9, 4).to(dtype)[
        :, :, :5
    ]  # part of a cache, and of one sign: the sums grow
    rows = of_rows(x, number)
    assert torch.equal(rows, x[number])
    rows.backward(by)
    exact = torch.stack([by[number == n].double().sum(0) for n in range(3)])
    assert ((x.grad.double() - exact).abs() / exact).max() < bound


@pytest.mark.parametrize("name", SETTINGS)
def test_the_gradient_is_that_of_plain_trl(name):
    loss = "grpo" if name == "entropy bonus" else "dapo"
    _, found = steps(SMALL, loss_type=loss, **SETTINGS[name])
    (_, tokens, grads), (_, plain_tokens, plain) = found["ours"], found["TRL"]
    if name != "entropy bonus":  # TRL's bonus is a mean over a micro-batch, ours over the step
        assert apart(grads, plain) < 1e-5
    assert tokens < 0.9 * plain_tokens


def test_an_adapter_has_the_same_gradient():
    _, found = steps(replace(SMALL, lora=True))
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_prompts_run_once_and_dead_groups_not_at_all():
    case = replace(SMALL, prompt=(130, 130), completion=(20, 0.0, 20), micro_batch=32)
    found = steps(case)[1]
    live = 6  # of 8 groups
    assert found["ours"][1] == live * 129 + live * 4 * (1 + 20)
    assert found["TRL"][1] == 32 * 150


def test_switched_off_it_runs_what_trl_runs():
    off = {"layout": "padded", "skip_dead_rows": False}
    _, found = steps(SMALL, **off)
    assert found["ours"][1] == found["TRL"][1]
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_a_step_without_signal_has_no_gradient_and_no_nan():
    bench, found = steps(replace(SMALL, dead=1.0))
    assert found["ours"][2].abs().max() == 0
    assert all(
        value == value
        for values in bench.trainers["ours"]._metrics["train"].values()
        for value in values
    )


def test_truncated_sampling_keeps_its_own_tokens_row_by_row():
    case = replace(SMALL, settings=(("top_k", 20), ("num_iterations", 2), ("beta", 0.1)))
    grads = []
    for layout in ("chunks", "padded"):
        bench = Bench(replace(case, settings=(*case.settings, ("layout", layout))), ("ours",))
        bench.step("ours")
        grads.append(bench.step("ours")[2])
    assert apart(*grads) < 1e-5


def test_a_model_that_keeps_nothing_reads_each_prompt_with_its_completion():
    bench = Bench(SMALL)
    bench.trainers["ours"].model.gradient_checkpointing_enable()  # behind the trainer's back
    found = {side: bench.step(side) for side in ("TRL", "ours")}
    assert not bench.trainers["ours"].parts.scorer.layout.shares
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_learned_positions_keep_their_padding():
    """They count it, so that cutting it would move every token."""
    config = AutoConfig.for_model(
        "gpt2",
        vocab_size=SMALL.vocab,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        pad_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    bench = Bench(SMALL, model=AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    found = {side: bench.step(side) for side in ("TRL", "ours")}
    assert not bench.trainers["ours"].parts.scorer.layout.trimmed
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_a_sliding_window_keeps_the_prompt_with_each_completion():
    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    models = [
        AutoModelForCausalLM.from_config(
            AutoConfig.for_model("mistral", **shape, sliding_window=window)
        )
        for window in (None, 8)
    ]
    assert [caches_every_token(model) for model in models] == [True, False]


@pytest.mark.parametrize("architecture", ["qwen3", "gemma", "phi3", "gpt_neox", "olmo2"])
def test_other_architectures_score_the_same(architecture):
    config = AutoConfig.for_model(
        architecture,
        vocab_size=SMALL.vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    bench = Bench(SMALL, model=model)
    found = {side: bench.step(side) for side in ("TRL", "ours")}
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5
