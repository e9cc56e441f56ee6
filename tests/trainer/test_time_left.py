"""A run says how long it still takes, from what its own clock has measured."""

from __future__ import annotations

import pytest
from datasets import Dataset

from grpo_ext.common.run_time import RunTime, duration
from grpo_ext.trainer import phases
from tests.support.logs import entries_with
from tests.support.tiny_run import tiny_arguments, tiny_trainer

SAVE = 3.0  # seconds of a save by the clock of a run; a completion takes one second


class Clock:
    """A clock that the rewards and saves of a run move, and hardly anything else."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1e-6  # no phase takes no time
        return self.now


def run_of(folder, out, monkeypatch, **settings):
    """Return the lines and the log of a run with 8 completions a step and 2 held-out rows."""
    clock = Clock()
    monkeypatch.setattr(phases, "time", clock)

    def reward(completions, **columns):
        clock.now += len(completions)
        return [float(i % 2) for i, _ in enumerate(completions)]

    rows = [{"prompt": f"Use {a}, 2, 3 to make 9."} for a in range(1, 9)]
    args = tiny_arguments(
        out,
        max_completion_length=2,
        max_steps=8,
        eval_temperature=0.0,
        eval_constant=False,
        **settings,
    )
    trainer = tiny_trainer(
        folder, [reward], args, Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows[:2])
    )
    lines = []
    trainer.parts.time_left.write = lines.append
    save_model = trainer.save_model

    def slow_save(*args, **kwargs):
        clock.now += SAVE
        save_model(*args, **kwargs)

    trainer.save_model = slow_save
    trainer.train()
    return lines, entries_with(trainer, "loss")


def test_the_time_left_is_said_after_three_steps_and_with_each_first_measurement(
    tiny_folder, tmp_path, monkeypatch
):
    lines, log = run_of(
        tiny_folder,
        tmp_path,
        monkeypatch,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=5,
    )
    assert lines == [
        "about 40 s left: 5 steps of 8 s; plus 2 evaluations and 2 saves, not measured yet",
        "about 34 s left: 4 steps of 8 s, 1 evaluation of 2 s; plus 2 saves, not measured yet",
        "about 29 s left: 3 steps of 8 s, 1 evaluation of 2 s, 1 save of 3 s",
    ]
    hours = [row.get("progress/hours_left") for row in log]
    expected = [40, 32, 24 + 2, 16 + 2 + 3, 8 + 2 + 3, 2 + 3]
    assert hours[:2] == [None, None]
    assert hours[2:] == [pytest.approx(seconds / 3600, rel=1e-3) for seconds in expected]


def test_whole_generations_are_measured(tiny_folder, tmp_path, monkeypatch):
    """Each second step has the seconds of a generation; the others take none."""
    lines, _ = run_of(tiny_folder, tmp_path, monkeypatch, steps_per_generation=2)
    assert lines == ["about 32 s left: 4 steps of 8 s"]


def test_a_short_run_says_nothing(tiny_folder, tmp_path, monkeypatch):
    lines, _ = run_of(tiny_folder, tmp_path, monkeypatch, steps_per_generation=4)
    assert lines == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.254, "0.25 s"),
        (9.96, "10 s"),
        (80, "80 s"),
        (99.6, "2 min"),
        (3570, "1 h 0 min"),
        (4800, "1 h 20 min"),
        (500_000, "139 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_parts_of_a_run():
    run = RunTime(290, 3, 10, 14.2, 80.0, 2.0)
    assert run.describe() == "290 steps of 14 s, 3 evaluations of 80 s, 10 saves of 2 s"
    assert run.seconds == 290 * 14.2 + 3 * 80 + 10 * 2
    assert RunTime(1, 0, 0, 2.0).describe() == "1 step of 2 s"
