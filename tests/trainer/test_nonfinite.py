"""A step whose gradient is not finite changes nothing, is counted, and is told."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_ext.objective import policy
from grpo_ext.trainer.manifest import newest_whole
from grpo_ext.trainer.stopping import NonFiniteSteps
from tests.support.logs import json_rows
from tests.support.resumed_run import STEPS, make, spoil, weights


@pytest.fixture
def fragile():
    """A loss that divides by zero where one completion of a group is far better than the others."""

    @policy.register_loss("fragile", aggregation="token_mean")
    def fragile(x):
        return policy.clipped(x) / (x.advantages <= 1.2).all()

    yield
    policy._LOSSES.pop("fragile")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_without_a_finite_gradient_changes_no_weight_and_no_moment(
    tiny_folder, tmp_path, value, caplog
):
    trainer = make(tiny_folder, tmp_path, logging_steps=1, max_grad_norm=0.5)
    spoil(trainer, {3, 4}, value)
    trainer.train()
    saved = {
        step: torch.load(tmp_path / f"checkpoint-{step}/optimizer.pt")["state"]
        for step in (2, 3, 4, 5)
    }
    torch.testing.assert_close(saved[3], saved[2], rtol=0, atol=0)
    torch.testing.assert_close(saved[4], saved[2], rtol=0, atol=0)
    assert not torch.equal(saved[5][0]["exp_avg"], saved[4][0]["exp_avg"])
    models = [
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").read_bytes() for step in (2, 4, 5)
    ]
    assert models[0] == models[1] != models[2]
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert trainer.parts.finite.skipped == 2 and trainer.parts.finite.in_a_row == 0
    lines = json_rows(tmp_path / "metrics.jsonl")
    counted = {line["step"]: line.get("skipped_steps") for line in lines if "loss" in line}
    assert counted == {1: None, 2: None, 3: 1, **dict.fromkeys(range(4, STEPS + 1), 2)}
    assert {line["step"] for line in lines if line.get("alarm") == "not_finite"} == {3}
    name = next(name for name, _ in trainer.model.named_parameters())
    told = [m for m in caplog.messages if "Skipping step" in m]
    assert len(told) == 2 and all(message.endswith(").") for message in told)
    assert all(
        (f"; the gradient is not finite in {name})" in message) == math.isinf(value)
        for message in told
    )


def test_a_loss_that_is_not_finite_is_told_with_its_micro_batch(
    tiny_folder, tmp_path, fragile, caplog
):
    trainer = make(tiny_folder, tmp_path, loss_type="fragile", max_skipped_steps=STEPS)
    trainer.train()
    told = [message for message in caplog.messages if "its gradient norm is " in message]
    assert len(told) == trainer.parts.finite.skipped >= 2
    assert all(
        "micro-batches on rank 0" in message and ("inf" in message or "nan" in message)
        for message in told
    )
    assert all(p.isfinite().all() for p in trainer.model.parameters())


def test_more_in_a_row_end_the_run_with_a_checkpoint_and_the_count_outlives_it(
    tiny_folder, tmp_path
):
    trainer = make(tiny_folder, tmp_path, max_skipped_steps=2, save_strategy="no")
    spoil(trainer, {2, 4, 5, 6, 7}, math.nan)
    with pytest.raises(NonFiniteSteps, match=r"steps in a row .*: 3 \(max_skipped_steps: 2"):
        trainer.train()
    assert newest_whole(tmp_path) == str(tmp_path / "checkpoint-6")
    again = make(tiny_folder, tmp_path, max_skipped_steps=2, save_strategy="no")
    again.train(True)
    assert again.parts.finite.skipped == 4 and again.state.global_step == STEPS
    assert all(p.isfinite().all() for p in weights(again).values())
