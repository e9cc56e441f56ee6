"""Completions are sampled and scored without dropout, so that both are of one policy."""

from __future__ import annotations

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from tests.support.logs import entries_with
from tests.support.tiny_run import tiny_arguments

pytestmark = pytest.mark.slow


def letters(completions, **kwargs):
    return [float(sum(map(ord, text)) % 5) for text in completions]


@pytest.mark.parametrize("off, least, most", [(True, 0.0, 2e-5), (False, 1e-3, 10.0)])
def test_an_adapter_with_dropout(tiny_folder, tmp_path, caplog, off, least, most):
    given = {} if off else {"disable_dropout": False}
    args = tiny_arguments(
        tmp_path, max_steps=3, learning_rate=1e-2, beta=0.1, sampler_check_share=1.0, **given
    )
    trainer = GRPOExtTrainer(
        AutoModelForCausalLM.from_pretrained(tiny_folder),
        [letters],
        args,
        Dataset.from_list([{"prompt": f"Use {n}, 3 to make {n + 3}."} for n in range(16)]),
        processing_class=AutoTokenizer.from_pretrained(tiny_folder, padding_side="left"),
        peft_config=LoraConfig(
            r=8, lora_dropout=0.1, target_modules="all-linear", init_lora_weights=False
        ),
    )
    trainer.train()
    steps = entries_with(trainer, "loss")
    assert len(steps) == 3 and all(entry["grad_norm"] > 0 for entry in steps)
    assert all(least <= entry["sampling/logp_difference/max"] <= most for entry in steps)
    assert ("uses dropout (p = 0.1)" in caplog.text) is not off
