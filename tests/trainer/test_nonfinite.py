"""A step whose gradient is not finite changes nothing, is counted, and is kept."""

from __future__ import annotations

import json
import math

import pytest
import torch
from test_resume import STEPS, make, weights

from grpo_ext.objective import policy
from grpo_ext.trainer.manifest import newest_whole
from grpo_ext.trainer.nonfinite import NonFiniteSteps
from grpo_ext.trainer.state import load_plain


@pytest.fixture
def fragile():
    """A loss that divides by zero where one completion of a group is far better than the others."""

    @policy.register_loss("fragile", aggregation="token_mean")
    def fragile(x):
        return policy.clipped(x) / (x.advantages <= 1.2).all()

    yield
    policy._LOSSES.pop("fragile")


def spoil(trainer, steps, value):
    """Make the gradient of one weight `value` in these steps, as it comes out of the backward pass."""

    def hook(gradient):
        if trainer.state.global_step + 1 in steps:
            gradient = gradient.clone()
            gradient.view(-1)[3] = value
        return gradient

    next(trainer.model.parameters()).register_hook(hook)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_step_without_a_finite_gradient_changes_no_weight_and_no_moment(tiny_folder, tmp_path, value):
    trainer = make(tiny_folder, tmp_path, logging_steps=1, max_grad_norm=0.5)
    spoil(trainer, {3, 4}, value)
    trainer.train()
    saved = {step: torch.load(tmp_path / f"checkpoint-{step}/optimizer.pt")["state"] for step in (2, 3, 4, 5)}
    torch.testing.assert_close(saved[3], saved[2], rtol=0, atol=0)
    torch.testing.assert_close(saved[4], saved[2], rtol=0, atol=0)
    assert not torch.equal(saved[5][0]["exp_avg"], saved[4][0]["exp_avg"])
    models = [(tmp_path / f"checkpoint-{step}" / "model.safetensors").read_bytes() for step in (2, 4, 5)]
    assert models[0] == models[1] != models[2]
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert trainer.parts.finite.skipped == 2 and trainer.parts.finite.in_a_row == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counted = {line["step"]: line.get("skipped_steps") for line in lines if "loss" in line}
    assert counted == {1: None, 2: None, 3: 1, **dict.fromkeys(range(4, STEPS + 1), 2)}
    assert {line["step"] for line in lines if line.get("alarm") == "not_finite"} == {3}


def losses_of(trainer, dump):
    """The losses of a kept step's micro-batches, from its weights."""
    trainer.model.load_state_dict(dump["weights"], strict=False)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = dump["accumulation"]
    return [float(trainer._compute_loss(trainer.model, inputs)) for inputs in dump["inputs"]]


def test_the_kept_step_has_what_its_loss_needs(tiny_folder, tmp_path, fragile):
    trainer = make(tiny_folder, tmp_path, loss_type="fragile", max_skipped_steps=STEPS)
    trainer.train()
    kept = sorted(tmp_path.glob("not_finite-*"))
    assert trainer.parts.finite.skipped >= 2 and len(kept) == 2
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    for folder in kept:
        dump = load_plain(folder / "rank_0.pt")
        assert not all(map(math.isfinite, dump["losses"]))
        again = losses_of(make(tiny_folder, tmp_path / "again", loss_type="fragile"), dump)
        assert [repr(loss) for loss in again] == [repr(loss) for loss in dump["losses"]]
        other = losses_of(make(tiny_folder, tmp_path / "other"), dump)  # the same rows and weights, without the division
        assert all(map(math.isfinite, other))


def test_more_in_a_row_end_the_run_with_a_checkpoint_and_the_count_outlives_it(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, max_skipped_steps=2, save_strategy="no")
    spoil(trainer, {2, 4, 5, 6, 7}, math.nan)
    with pytest.raises(NonFiniteSteps, match=r"3 steps in a row .*max_skipped_steps: 2"):
        trainer.train()
    assert newest_whole(tmp_path) == str(tmp_path / "checkpoint-6")
    again = make(tiny_folder, tmp_path, max_skipped_steps=2, save_strategy="no")
    again.train(True)
    assert again.parts.finite.skipped == 4 and again.state.global_step == STEPS
    assert all(p.isfinite().all() for p in weights(again).values())
