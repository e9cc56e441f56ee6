"""The temperature of each step, and schedules that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.objective.schedule import SCHEDULES, TemperatureSchedule, resolve_schedule

DEFAULTS = {
    "temperature_schedule": "constant",
    "temperature_end": None,
    "temperature": 1.0,
    "generation_kwargs": None,
    "group_filter": "off",
    "max_staleness": 1,
}


def test_a_run_of_five_steps():
    linear, cosine = (TemperatureSchedule(name, 1.0, 0.6) for name in ("linear", "cosine"))
    assert [linear.at(step, 5) for step in range(5)] == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6])
    assert [cosine.at(step, 5) for step in range(5)] == pytest.approx([1.0, 0.94142, 0.8, 0.65858, 0.6], abs=1e-5)


@given(st.sampled_from(SCHEDULES), st.floats(0.1, 2), st.floats(0.1, 2), st.integers(1, 50), st.integers(0, 60))
def test_it_starts_ends_and_never_turns_back(name, start, end, num_steps, step):
    schedule = TemperatureSchedule(name, start, end)
    last = schedule.at(num_steps - 1, num_steps) if num_steps > 1 else schedule.at(1, 1)
    assert schedule.at(0, num_steps) == pytest.approx(start)
    assert last == pytest.approx(start if name == "constant" else end)
    here, there = schedule.at(step, num_steps), schedule.at(step + 1, num_steps)
    assert abs(there - last) <= abs(here - last) + 1e-9
    assert min(start, end) - 1e-9 <= here <= max(start, end) + 1e-9


@pytest.mark.parametrize(
    "fields, batch, words",
    [
        ({"temperature_schedule": "linaer"}, (1, 1, 1), "one of constant, linear, cosine"),
        ({"temperature_schedule": "linear"}, (1, 1, 1), "write temperature_end"),
        ({"temperature_end": 0.5}, (1, 1, 1), "write temperature_schedule: linear"),
        (
            {"temperature_schedule": "cosine", "temperature_end": 0.5, "generation_kwargs": {"temperature": 1.0}},
            (1, 1, 1),
            "drop it from generation_kwargs",
        ),
        ({"temperature_schedule": "linear", "temperature_end": 0.5}, (4, 6, 1), "write steps_per_generation: 4"),
        (
            {"temperature_schedule": "linear", "temperature_end": 0.5, "group_filter": "refill"},
            (1, 1, 1),
            "write max_staleness: 0",
        ),
    ],
)
def test_refusals_say_what_to_write(fields, batch, words):
    with pytest.raises(ValueError, match=words):
        resolve_schedule({**DEFAULTS, **fields}, *batch)


@pytest.mark.parametrize("batch", [(4, 4, 1), (4, 2, 1), (2, 8, 1), (4, 3, 4), (6, 1, 2)])
def test_steps_and_generations_that_divide_each_other_are_taken(batch):
    fields = {**DEFAULTS, "temperature_schedule": "linear", "temperature_end": 0.5, "group_filter": "drop"}
    assert resolve_schedule(fields, *batch).moves
