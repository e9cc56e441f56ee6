"""Sampler and scorer give the same bits, in every layout, batch and number type."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from trl.trainer.utils import add_fused_lm_head

from grpo_ext.determinism.mode import InvariantOperations
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.layout import Layout
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams.generate import cut_after_end, fast_generation, watching
from grpo_ext.seams.precision import choose_precision, sampling_in
from grpo_ext.seams.scoring import run_invariantly
from grpo_ext.step.records import Generation, table_of
from tests.support.tiny_models import ENDS, decoding, make_batch, make_model

TRUNCATIONS = {
    "none": {},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
}
LAYOUTS = {
    "prompts once": Layout(kind="chunks"),
    "chunks": Layout(kind="chunks", shares=False, max_tokens=90),
    "packed": Layout(kind="packed", shares=False, row_tokens=200),
    "packed, prompts once": Layout(kind="packed", in_row=True, row_tokens=100),
    "padded": Layout(kind="padded"),
}


@pytest.fixture(autouse=True)
def no_mixed_precision_of_earlier_tests():
    AcceleratorState._reset_state()


def precision_of(model):
    return choose_precision(model, None, False, None)


def sampled(model, truncation, fast=True):
    """Completions of nine prompts of different lengths, with the sampler's log-probs."""
    batch = make_batch([5, 3, 9, 1, 12, 2, 7, 4, 20], group=2, seed=3)
    params = SamplingParams(temperature=0.8, **truncation)
    recorder = Recorder(params)
    config = decoding(16, do_sample=True, temperature=0.8, **{"top_k": 0, **truncation})
    loop = fast_generation(model) if fast else nullcontext()
    torch.manual_seed(0)
    computing = sampling_in(precision_of(model), model)
    with torch.no_grad(), loop, computing, watching(model, recorder), InvariantOperations():
        ids = model.generate(**batch, generation_config=config)
    width = batch["input_ids"].size(1)
    completions = [cut_after_end(row, set(ENDS)) for row in ids[:, width:].tolist()]
    kept, logps = recorder.rows(completions)
    prompts = []
    for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        prompts.append(row[mask.bool()].tolist())
    none_left_out = torch.zeros(len(prompts), dtype=torch.bool)
    generation = Generation(prompts, completions, 0, logps, kept)
    return table_of(generation, 0, none_left_out, "cpu"), params


def assert_equal(model, table, params, layout, block):
    run = partial(run_invariantly, Accelerator(cpu=True), precision_of(model))
    scores = Scorer(run, params, layout, images=None).score(model, table, block)
    mask = table.completion_mask.bool()
    assert torch.equal(scores.logps[mask], table.sampling_per_token_logps[mask])
    assert scores.logps.requires_grad


@pytest.mark.parametrize("truncation", TRUNCATIONS.values(), ids=TRUNCATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts_and_batches(dtype, truncation):
    model = make_model(initializer_range=0.2).to(dtype)
    add_fused_lm_head(model)
    table, params = sampled(model, truncation)
    lengths = table.completion_mask.sum(1)
    assert lengths.min() < 4 and lengths.max() > 9
    for layout, block in zip(LAYOUTS.values(), (None, 5, None, 7, 11), strict=True):
        assert_equal(model, table, params, layout, block)


@pytest.mark.parametrize("family", ["qwen2", "mistral", "gemma3_text"])
def test_model_families(family):
    model = make_model(family, initializer_range=0.2)
    add_fused_lm_head(model)
    table, params = sampled(model, {"top_p": 0.9})
    for kind in ("chunks", "padded"):
        assert_equal(model, table, params, Layout(kind=kind, shares=False), block=7)


def test_transformers_own_loop_and_other_numbers_of_threads():
    model = make_model(initializer_range=0.2)
    add_fused_lm_head(model)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        table, params = sampled(model, {"top_k": 7}, fast=False)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert_equal(model, table, params, LAYOUTS["chunks"], block=4)
    finally:
        torch.set_num_threads(before)
