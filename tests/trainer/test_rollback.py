"""A run whose alarm asks for it goes back to a checkpoint from before, and learns on from there at a lower rate."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from test_resume import letters, make, weights
from transformers import TrainerCallback

from grpo_ext.observe import jsonl
from grpo_ext.trainer.manifest import checkpoints, step_of

pytestmark = pytest.mark.slow
STEPS, BAD = 24, 13
COLLAPSE = {"reward_collapse": {"threshold": 3, "action": "rollback"}}
SETTINGS = {
    "max_steps": STEPS,
    "logging_steps": 1,
    "save_steps": 3,
    "lr_scheduler_type": "linear",
    "steps_per_generation": 4,
    "rollback_factor": 0.5,
}


class Mood(TrainerCallback):
    """Rewards fall by 100 from step `BAD` on, in the first `times` trainings."""

    def __init__(self, times=1):
        self.times, self.bad, self.rates = times, False, {}

    def letters(self, completions, **kwargs):
        return [score - 100 * self.bad for score in letters(completions)]

    def on_step_begin(self, args, state, control, **kwargs):
        self.bad = self.times > 0 and state.global_step >= BAD

    def on_step_end(self, args, state, control, **kwargs):
        self.rates[state.global_step] = kwargs["lr_scheduler"].get_last_lr()[0]

    def on_train_end(self, args, state, control, **kwargs):
        self.times -= 1


def trained(folder, out, mood, begin=None, **settings):
    trainer = make(folder, out, mood.letters, health_action="warn", health_rules=COLLAPSE, **SETTINGS, **settings)
    trainer.add_callback(mood)
    trainer.train(begin)
    return trainer


def test_it_goes_back_and_learns_on_at_half_the_rate(tiny_folder, tmp_path):
    healthy = Mood(times=0)
    trained(tiny_folder, tmp_path / "healthy", healthy)
    mood = Mood()
    run = trained(tiny_folder, tmp_path / "run", mood)
    assert run.state.global_step == STEPS and run.stopped_by is None
    (entry,) = json.loads((tmp_path / "run" / "rollbacks.json").read_text())
    alarm, to = entry["step"], entry["to"]
    assert BAD < alarm <= BAD + 6 and to == (alarm - 10) // 3 * 3
    for step, rate in mood.rates.items():
        assert rate == pytest.approx(healthy.rates[step] * (0.5 if step > to else 1)), step
    lines = list(jsonl.read(tmp_path / "run" / "metrics.jsonl"))
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    (note,) = [line for line in lines if line.get("action") == "rollback"]
    assert note["alarm"] == "reward_collapse" and note["step"] == to and f"Went back to step {to}" in note["message"]
    left = [line["step"] for line in jsonl.read(tmp_path / "run" / "rolled_back-1" / "metrics.jsonl") if "loss" in line]
    assert left == list(range(1, alarm + 1))
    # a process that died right after going back, before the next checkpoint
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "run" / f"checkpoint-{to}", again / f"checkpoint-{to}")
    shutil.copy(tmp_path / "run" / "rollbacks.json", again)
    resumed = trained(tiny_folder, again, Mood(times=0), begin=True)
    assert all(torch.equal(p, weights(run)[n]) for n, p in weights(resumed).items())
    # and one that died later: the rate is lowered once
    resumed = trained(tiny_folder, tmp_path / "run", Mood(times=0), begin=str(tmp_path / "run" / "checkpoint-21"))
    assert all(torch.equal(p, weights(run)[n]) for n, p in weights(resumed).items())


def test_where_it_cannot_go_back_it_ends_with_a_checkpoint(tiny_folder, tmp_path):
    often = trained(tiny_folder, tmp_path / "often", Mood(times=3), max_rollbacks=1)
    assert "rollback 1 of 1 is done" in often.stopped_by and often.state.global_step < STEPS
    assert step_of(checkpoints(tmp_path / "often")[-1]) == often.state.global_step
    rare = {**SETTINGS, "save_steps": 20}
    mood = Mood()
    trainer = make(tiny_folder, tmp_path / "rare", mood.letters, health_rules=COLLAPSE, **rare)
    trainer.add_callback(mood)
    trainer.train()
    assert "there is no checkpoint of step" in trainer.stopped_by
    assert len(checkpoints(tmp_path / "rare")) == 1
