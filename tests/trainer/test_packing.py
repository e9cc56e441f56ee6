"""Sequences in one row without padding, and micro-batches cut by tokens: the same gradient as plain TRL's, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.step_bench import Bench
from benchmarks.step_work import Case
from grpo_ext.trainer.settings import probe_of

# completions of 4 to 60 tokens after prompts of 10 to 40
SMALL = Case(32, 16, 4, (10, 40), (25, 0.9, 60), 0.25, 300, hidden=32)


def steps(case, model=None, **settings):
    bench = Bench(replace(case, settings=(*case.settings, *settings.items())), model=model)
    return bench, {side: bench.step(side) for side in ("TRL", "ours")}


def apart(a, b):
    return float((a - b).abs().max() / b.abs().max())


def model_of(architecture, **more):
    shape = {"vocab_size": SMALL.vocab, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **shape, **more), dtype=torch.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo"},
        {"loss_type": "dapo", "beta": 0.1},
        {"loss_type": "dr_grpo", "num_iterations": 2, "beta": 0.1},
        {"loss_type": "dapo", "gradient_checkpointing": True},
        {"compact_head": False},
    ],
    ids=["grpo", "KL", "several updates", "checkpointing", "whole head"],
)
def test_packed_rows_have_the_gradient_of_plain_trl(settings):
    _, found = steps(SMALL, packing="packed", **settings)
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_packed_rows_hold_no_padding_and_no_dead_row():
    bench, found = steps(SMALL, packing="packed")
    work = bench.trainers["ours"].work
    groups = [range(n * 4, n * 4 + 4) for n in range(8)]
    live = [n for n in range(8) if len({work.rewards[i] for i in groups[n]}) > 1]
    real = sum(len(work.prompts[n]) + len(work.completions[i]) for n in live for i in groups[n])
    assert found["ours"][1] == real < found["TRL"][1]


def test_metrics_and_log_probs_of_packed_rows_are_those_of_padded_ones():
    logged = {}
    for packing in ("none", "packed"):
        settings = (("packing", packing), ("beta", 0.1), ("num_iterations", 2))
        bench = Bench(replace(SMALL, settings=settings), ("ours",))
        bench.step("ours")
        logged[packing] = dict(bench.trainers["ours"]._metrics["train"])
    for name in ("entropy", "kl", "clip_ratio/region_mean"):
        assert logged["packed"][name] == pytest.approx(logged["none"][name], abs=1e-5)


def test_truncated_sampling_keeps_its_own_tokens_in_packed_rows():
    case = replace(SMALL, settings=(("top_k", 20), ("num_iterations", 2), ("beta", 0.1)))
    grads = []
    for packing in ("packed", "none"):
        bench = Bench(replace(case, settings=(*case.settings, ("packing", packing))), ("ours",))
        bench.step("ours")
        grads.append(bench.step("ours")[2])
    assert apart(*grads) < 1e-5


def test_an_adapter_takes_packed_rows():
    _, found = steps(replace(SMALL, lora=True), packing="packed")
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "more"),
    [("qwen3", {}), ("mistral", {"sliding_window": 8}), ("olmo2", {}), ("gemma", {}), ("gpt_neox", {})],
)
def test_other_architectures_take_packed_rows(architecture, more):
    _, found = steps(SMALL, model_of(architecture, **more), packing="packed")
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_a_recurrent_model_is_refused():
    more = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    with pytest.raises(ValueError, match=r"recurrent.*Write packing: none"):
        steps(SMALL, model_of("lfm2", **more), packing="packed")


def test_learned_positions_are_refused():
    with pytest.raises(ValueError, match=r"rotary positions.*Write packing: none"):
        steps(SMALL, model_of("gpt2", n_embd=32, n_head=4), packing="packed")


def test_a_model_that_mixes_sequences_is_refused():
    """By what it computes: here, one that leaves positions out of account and so sees the row as one sequence."""
    model = model_of("llama")
    backbone = type(model.model)

    class Mixing(backbone):
        def forward(self, *args, position_ids=None, **kwargs):
            return super().forward(*args, **kwargs)

    bench = Bench(SMALL, ("ours",), model=model)
    trainer = bench.trainers["ours"]
    probe = probe_of(trainer)
    probe.refuse_unless_separate(trainer.model)
    trainer.model.model.__class__ = Mixing
    with pytest.raises(ValueError, match="see each other"):
        probe.refuse_unless_separate(trainer.model)


@pytest.mark.parametrize("settings", [{}, {"packing": "packed"}, {"num_iterations": 2, "beta": 0.1}], ids=str)
def test_micro_batches_cut_by_tokens_have_the_gradient_of_plain_trl(settings):
    bench = Bench(replace(SMALL, settings=(("max_tokens_per_micro_batch", 200), *settings.items())))
    seen = []
    trainer = bench.trainers["ours"]
    score = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (seen.append(inputs), score(model, inputs))[1]
    found = {side: bench.step(side) for side in ("TRL", "ours")}
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5
    assert trainer._step == SMALL.rows // SMALL.micro_batch * dict(settings).get("num_iterations", 1)
    sizes = [(len(x.rows), int(x.rows.attention_mask.sum())) for x in seen]
    assert len(seen) > 4 and all(rows == 1 or tokens <= 200 for rows, tokens in sizes)


@pytest.mark.parametrize("settings", [{"top_entropy_quantile": 0.5}, {"length_batching": False}], ids=str)
def test_what_cannot_be_cut_is_refused(settings):
    with pytest.raises(ValueError, match=r"max_tokens_per_micro_batch(: 200 needs length_batching| would cut)"):
        steps(SMALL, max_tokens_per_micro_batch=200, **settings)
