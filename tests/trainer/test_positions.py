"""Padding on the left does not move a token's rotary position, which a half type would round."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from trl.trainer.utils import add_fused_lm_head

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.layout import choose_layout
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams.precision import choose_precision
from grpo_ext.seams.scoring import run_model
from grpo_ext.step.records import Generation, table_of
from tests.support.tiny_models import make_model


def layout_of(model, option="padded"):
    return choose_layout(
        option, model, one_call=False, aux_loss=False, recomputes=False, max_tokens=None
    )


def logps_of(model, layout, prompts, completions):
    generation = Generation(prompts, completions, 0, None, None)
    table = table_of(generation, 0, torch.zeros(len(prompts), dtype=torch.bool), "cpu")
    run = partial(run_model, Accelerator(cpu=True), choose_precision(model, None, False, None))
    scores = Scorer(run, SamplingParams(), layout, images=None).score(model, table)
    return scores.logps.detach()


@pytest.mark.parametrize("option", ["padded", "chunks"])
def test_a_padded_row_is_scored_as_the_row_alone(tiny_folder, option):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    add_fused_lm_head(model)
    layout = replace(layout_of(model, option), shares=False)
    assert layout.positions
    generator = torch.Generator().manual_seed(0)
    lengths = [60, *range(3, 18)]
    prompts = [torch.randint(2, 400, (n,), generator=generator).tolist() for n in lengths]
    completions = torch.randint(2, 400, (len(lengths), 12), generator=generator).tolist()
    alone = []
    for prompt, completion in zip(prompts, completions, strict=True):
        alone.append(logps_of(model, layout, [prompt], [completion]))
    distances = []
    for positions in (True, False):
        padded = logps_of(model, replace(layout, positions=positions), prompts, completions)
        distances.append(float((padded - torch.cat(alone)).abs().mean()))
    assert distances[0] < 0.5 * distances[1]


def test_positions_are_for_models_that_take_them():
    rotary = make_model()
    assert layout_of(rotary, "chunks").positions
    assert layout_of(get_peft_model(make_model(), LoraConfig(r=2))).positions
    prompt_tuned = get_peft_model(
        make_model(), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    )
    assert not layout_of(prompt_tuned).positions
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=1))
    assert not layout_of(learned).positions
