"""Sequences in one row without padding, and micro-batches cut by tokens.

The same gradient as plain TRL's, or refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import Head
from grpo_ext.scoring.layout import WIDE, choose_layout
from grpo_ext.scoring.packed import run_packed
from grpo_ext.step.records import Scores
from grpo_ext.trainer.settings import probe_of
from tests.support.step_bench import Bench
from tests.support.step_work import Case

# completions of 4 to 60 tokens after prompts of 10 to 40
SMALL = Case(32, 16, 4, (10, 40), (25, 0.9, 60), 0.25, 300, hidden=32)


def steps(case, model=None, **settings):
    bench = Bench(replace(case, settings=(*case.settings, *settings.items())), model=model)
    return bench, {side: bench.step(side) for side in ("TRL", "ours")}


def apart(a, b):
    return float((a - b).abs().max() / b.abs().max())


def model_of(architecture, **more):
    shape = {
        "vocab_size": SMALL.vocab,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    shape |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(architecture, **shape, **more), dtype=torch.float32
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo"},
        {"loss_type": "dapo", "beta": 0.1},
        {"loss_type": "dr_grpo", "num_iterations": 2, "beta": 0.1},
        {"loss_type": "dapo", "gradient_checkpointing": True},
    ],
    ids=["grpo", "KL", "several updates", "checkpointing"],
)
def test_packed_rows_have_the_gradient_of_plain_trl(settings):
    _, found = steps(SMALL, layout="packed", **settings)
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_packed_rows_hold_no_padding_and_no_dead_row():
    bench, found = steps(SMALL, layout="packed")
    work = bench.trainers["ours"].work
    groups = [range(n * 4, n * 4 + 4) for n in range(8)]
    live = [n for n in range(8) if len({work.rewards[i] for i in groups[n]}) > 1]
    # the last token of a prompt runs with each completion
    real = sum(
        len(work.prompts[n]) - 1 + sum(1 + len(work.completions[i]) for i in groups[n])
        for n in live
    )
    again = sum(
        len(work.prompts[n]) - 1 for n in live
    )  # a group that two micro-batches or rows share brings its prompt twice
    assert real <= found["ours"][1] < min(real + again, found["TRL"][1])


def test_completions_in_a_row_see_their_prompt_and_nothing_else():
    """Attention by the mask of a row, which holds two prompts with three completions each, against
    each one alone.
    """
    model = model_of("qwen3").eval()
    params = SamplingParams(0.8)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(2, SMALL.vocab, (2, 9), generator=generator).repeat_interleave(3, 0)
    ids = torch.cat([prompts, torch.randint(2, SMALL.vocab, (6, 7), generator=generator)], 1)
    mask = torch.ones_like(ids)
    mask[:3, :4], mask[1, 12:], mask[4, 9:] = (
        0,
        0,
        0,
    )  # a shorter prompt, a shorter completion, an empty one

    def run(model, head, labels, **inputs):
        logits = model(**inputs).logits[:, :-1] / params.temperature
        logps = (
            logits.log_softmax(-1).gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)
        )
        return Scores(logps * (labels[:, 1:] != -100))

    wanted = torch.zeros(6, 7)
    # not by flex attention: on CPUs without AVX-512 torch's is wrong for single rows of some
    # lengths
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for i in range(6):
            row = ids[i][mask[i].bool()][None]
            count = int(mask[i, 9:].sum())
            wanted[i, :count] = run(model, None, row, input_ids=row).logps[
                0, row.shape[1] - 1 - count :
            ]
    for attention in ("sdpa", "eager", "flex_attention"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found = run_packed(run, model, Head(params), ids, mask, 7, shares=True).logps
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("attention", "sharded", "checkpointing", "wanted"),
    [
        ("sdpa", False, False, ("chunks", True, False)),
        ("eager", False, True, ("chunks", True, False)),
        ("sdpa", True, False, ("padded", False, False)),
        ("flash_attention_2", False, False, ("packed", True, True)),
        ("flash_attention_2", True, False, ("packed", False, False)),
        ("flex_attention", False, True, ("packed", True, False)),
        ("flex_attention", True, False, ("packed", True, False)),
    ],
)
def test_the_layout_that_is_chosen(attention, sharded, checkpointing, wanted):
    model = model_of("qwen3")
    model.config._attn_implementation_internal = attention
    layout = choose_layout(
        "auto", model, one_call=sharded, aux_loss=False, recomputes=checkpointing, max_tokens=None
    )
    assert (layout.kind, layout.shares, layout.by_cost) == wanted
    assert bool(layout.reason) == (layout.kind != "chunks")


@pytest.mark.parametrize(
    ("sharded", "checkpointing", "wanted"),
    [
        (False, False, ("packed", True, True, True)),
        (False, True, ("packed", True, True, True)),
        (True, False, ("padded", False, False, False)),
    ],
)
def test_wide_layers_on_a_cpu_run_in_rows(sharded, checkpointing, wanted):
    model = model_of("qwen3")
    model.config.hidden_size = WIDE
    layout = choose_layout(
        "auto", model, one_call=sharded, aux_loss=False, recomputes=checkpointing, max_tokens=None
    )
    assert (layout.kind, layout.shares, layout.by_cost, layout.in_row) == wanted


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("length", [4, 60, 700])
def test_rows_or_chunks_the_gradient_is_the_same(length, checkpointing):
    """Prompts longer than a packed row run in chunks, unless checkpointing keeps none of them."""
    settings = (("gradient_checkpointing", checkpointing),)
    case = replace(SMALL, rows=16, micro_batch=16, prompt=(length, length), settings=settings)
    bench = Bench(case)
    scorer = bench.trainers["ours"].parts.scorer
    scorer.layout = replace(scorer.layout, kind="packed", by_cost=True, in_row=True, row_tokens=512)
    steps_of_both = {side: bench.step(side) for side in ("TRL", "ours")}
    assert apart(steps_of_both["ours"][2], steps_of_both["TRL"][2]) < 1e-5
    work = bench.trainers["ours"].work
    prompts_once = sum(map(len, work.completions)) + length * len(work.prompts)
    if length == 60 or (length == 700 and not checkpointing):
        assert steps_of_both["ours"][1] < 1.5 * prompts_once


def test_long_prompts_run_in_chunks_and_short_ones_in_rows():
    """Where both are open (FlashAttention), what runs fewer tokens."""
    ran = {}
    for length in (4, 400):
        bench = Bench(replace(SMALL, prompt=(length, length), completion=(60, 0.9, 200)), ("ours",))
        scorer = bench.trainers["ours"].parts.scorer
        scorer.layout = replace(
            scorer.layout, kind="packed", by_cost=True, in_row=False, row_tokens=None
        )
        ran[length] = (bench.step("ours"), bench.step("ours"))[1][1]
        work = bench.trainers["ours"].work
        real = sum(map(len, work.completions)) + length * SMALL.rows
        assert (ran[length] <= real) if length == 4 else (ran[length] < real / 2)


def test_metrics_and_log_probs_of_packed_rows_are_those_of_padded_ones():
    logged = {}
    for layout in ("chunks", "packed"):
        settings = (("layout", layout), ("beta", 0.1), ("num_iterations", 2))
        bench = Bench(replace(SMALL, settings=settings), ("ours",))
        bench.step("ours")
        logged[layout] = dict(bench.trainers["ours"]._metrics["train"])
    for name in ("entropy", "kl", "clip_ratio/region_mean"):
        assert logged["packed"][name] == pytest.approx(logged["chunks"][name], abs=1e-5)


def test_truncated_sampling_keeps_its_own_tokens_in_packed_rows():
    case = replace(SMALL, settings=(("top_k", 20), ("num_iterations", 2), ("beta", 0.1)))
    grads = []
    for layout in ("packed", "chunks"):
        bench = Bench(replace(case, settings=(*case.settings, ("layout", layout))), ("ours",))
        bench.step("ours")
        grads.append(bench.step("ours")[2])
    assert apart(*grads) < 1e-5


def test_an_adapter_takes_packed_rows():
    _, found = steps(replace(SMALL, lora=True), layout="packed")
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("qwen3", {}),
        ("mistral", {"sliding_window": 8}),
        ("olmo2", {}),
        ("gemma", {}),
        ("gpt_neox", {}),
    ],
)
def test_other_architectures_take_packed_rows(architecture, more):
    _, found = steps(SMALL, model_of(architecture, **more), layout="packed")
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5


def test_a_recurrent_model_is_refused():
    more = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    with pytest.raises(ValueError, match=r"recurrent.*Set `layout: chunks`"):
        steps(SMALL, model_of("lfm2", **more), layout="packed")


def test_learned_positions_are_refused():
    with pytest.raises(ValueError, match=r"count padding.*Set `layout: chunks`"):
        steps(SMALL, model_of("gpt2", n_embd=32, n_head=4), layout="packed")


def test_a_model_that_mixes_sequences_is_refused():
    """By what it computes.

    Here, one that leaves positions out of account and so sees the row as one sequence.
    """
    model = model_of("llama")
    backbone = type(model.model)

    class Mixing(backbone):
        def forward(self, *args, position_ids=None, **kwargs):
            return super().forward(*args, **kwargs)

    bench = Bench(SMALL, ("ours",), model=model)
    trainer = bench.trainers["ours"]
    probe = probe_of(trainer)
    probe.refuse_unless_separate(trainer.model, shares=False)
    trainer.model.model.__class__ = Mixing
    with pytest.raises(ValueError, match="attend to each other"):
        probe.refuse_unless_separate(trainer.model, shares=False)


@pytest.mark.parametrize(
    "settings", [{}, {"layout": "packed"}, {"num_iterations": 2, "beta": 0.1}], ids=str
)
def test_micro_batches_cut_by_tokens_have_the_gradient_of_plain_trl(settings):
    bench = Bench(replace(SMALL, settings=(("max_tokens_per_micro_batch", 200), *settings.items())))
    seen = []
    trainer = bench.trainers["ours"]
    score = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: (seen.append(inputs), score(model, inputs))[1]
    found = {side: bench.step(side) for side in ("TRL", "ours")}
    assert apart(found["ours"][2], found["TRL"][2]) < 1e-5
    assert trainer._step == SMALL.rows // SMALL.micro_batch * dict(settings).get(
        "num_iterations", 1
    )
    sizes = [(len(x.rows), int(x.rows.attention_mask.sum())) for x in seen]
    assert len(seen) > 4 and all(rows == 1 or tokens <= 200 for rows, tokens in sizes)


@pytest.mark.parametrize("settings", [{"top_entropy_quantile": 0.5}, {"layout": "padded"}], ids=str)
def test_what_cannot_be_cut_is_refused(settings):
    with pytest.raises(
        ValueError, match=r"max_tokens_per_micro_batch(: 200` needs `layout| splits)"
    ):
        steps(SMALL, max_tokens_per_micro_batch=200, **settings)
