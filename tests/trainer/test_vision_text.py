"""Rows of text under models that also read images, whose tokens have positions of three parts."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForImageTextToText

from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.trainer.run_output import describe
from grpo_ext.trainer.settings import make_scorer, probe_of
from tests.support import step_work
from tests.support.step_bench import Bench
from tests.support.step_work import Case
from tests.support.tiny_vision import QWEN, qwen_vision

# completions of 4 to 60 tokens, prompts of 120 to 140: worth a shared prompt
SMALL = Case(32, 16, 4, (120, 140), (25, 0.9, 60), 0.25, 300, hidden=32)


@pytest.mark.parametrize("kind", QWEN)
def test_prompts_are_shared_with_the_gradient_of_plain_trl(monkeypatch, kind):
    monkeypatch.setattr(step_work, "AutoModelForCausalLM", AutoModelForImageTextToText)
    bench = Bench(SMALL, model=qwen_vision(kind, SMALL.vocab))
    found = {}
    for side, trainer in bench.trainers.items():
        trainer.model.model.visual.requires_grad_(False)
        ids = torch.full((3, 6), 7)  # the model goes on thinking of these rows
        trainer.model.generate(
            input_ids=ids, attention_mask=ids > 0, max_new_tokens=2, pad_token_id=0
        )
        found[side] = bench.step(side)
    assert bench.trainers["ours"].parts.scorer.layout.shares
    assert found["ours"][1] < 0.5 * found["TRL"][1]
    assert (found["ours"][2] - found["TRL"][2]).abs().max() < 1e-5 * found["TRL"][2].abs().max()


def deaf(backbone):
    """Takes no notice of what it has read."""

    class Deaf(backbone):
        def forward(self, *args, **kwargs):
            cache = kwargs.get(CACHE_INPUT)
            if cache is not None and cache.get_seq_length():
                kwargs[CACHE_INPUT] = None
                kwargs["attention_mask"] = kwargs["attention_mask"][
                    :, -kwargs["input_ids"].size(1) :
                ]
            return super().forward(*args, **kwargs)

    return Deaf


def failing(backbone):
    class Failing(backbone):
        def forward(self, *args, **kwargs):
            cache = kwargs.get(CACHE_INPUT)
            if cache is not None and cache.get_seq_length():
                raise RuntimeError("positions have three parts")
            return super().forward(*args, **kwargs)

    return Failing


@pytest.mark.parametrize("broken", [deaf, failing])
def test_a_model_that_cannot_go_on_from_a_prompt_reads_it_with_each_completion(broken):
    bench = Bench(SMALL, ("ours",))
    trainer = bench.trainers["ours"]
    assert "each group's prompt computed once" in describe(trainer)[1]
    trainer.model.model.__class__ = broken(type(trainer.model.model))
    assert not probe_of(trainer).shares_prompts(trainer.model)
    scorer = trainer.parts.scorer
    scorer.layout = make_scorer(trainer, scorer.params, scorer.layout).layout
    assert "the model cannot continue from a shared one" in describe(trainer)[1]
    assert bench.step("ours")[2].isfinite().all()
