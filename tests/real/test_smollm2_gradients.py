"""Gradients of a pretrained model whose prompts are shared or packed, against plain TRL's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.real_run import SMALL_STEP
from tests.support.step_bench import Bench

SMALL = replace(SMALL_STEP, completion=(8, 0.9, 16))


def move_adapter(model: torch.nn.Module) -> None:
    """Give the second matrices values; while they are zero, the first have no gradient."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.01, generator=generator)


@pytest.mark.parametrize("layout", ["chunks", "packed"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointing"])
@pytest.mark.parametrize("lora", [False, True], ids=["full", "LoRA"])
def test_the_gradient_is_that_of_plain_trl(smollm2, lora, checkpointing, layout):
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    settings = (("layout", layout), ("gradient_checkpointing", checkpointing))
    bench = Bench(replace(SMALL, lora=lora, settings=settings), model=model)
    gradients = {}
    for side, trainer in bench.trainers.items():
        move_adapter(trainer.model)
        gradients[side] = bench.step(side)[2]
    assert bench.trainers["ours"].parts.scorer.layout.kind == layout
    assert bench.tokens["ours"] < bench.tokens["TRL"]
    difference = (gradients["ours"] - gradients["TRL"]).abs().max()
    assert difference < 2e-5 * gradients["TRL"].abs().max()
