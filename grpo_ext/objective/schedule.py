"""The schedule of the sampling temperature: a pure function of the step, so that a resumed run has the same temperature."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class TemperatureSchedule:
    """A temperature that changes from `start` at the first optimizer step to `end` at the last."""

    name: str  # one of `SCHEDULES`; "cosine" is half a period, slow at both ends
    start: float  # temperature of the first step
    end: float  # temperature of the last step; not used by "constant"

    @property
    def moves(self) -> bool:
        """Whether the temperature changes."""
        return self.name != "constant" and self.start != self.end

    def at(self, step: int, num_steps: int) -> float:
        """Return the temperature of optimizer step `step`, counted from 0, of `num_steps`; after the last step it is `end`."""
        if not self.moves:
            return self.start
        done = min(step / max(num_steps - 1, 1), 1.0)
        left = 1 - done if self.name == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.end + (self.start - self.end) * left


def resolve_schedule(
    fields: Mapping[str, Any], accumulation: int, steps_per_generation: int, num_iterations: int
) -> TemperatureSchedule:
    """Return the schedule that the training arguments describe.

    Args:
        fields: the training arguments by name.
        accumulation: micro-batches of an optimizer step.
        steps_per_generation: micro-batches of a generation.
        num_iterations: how often a generation is trained on.

    Raises:
        ValueError: if they contradict each other, or an optimizer step would mix completions of several temperatures.
    """
    name, end, start = fields["temperature_schedule"], fields["temperature_end"], fields["temperature"]
    if name not in SCHEDULES:
        raise ValueError(f"temperature_schedule is {name!r}: write one of {', '.join(SCHEDULES)}.")
    if name == "constant":
        if end is not None:
            raise ValueError("temperature_end has no effect on a constant temperature: write temperature_schedule: linear.")
        return TemperatureSchedule(name, start, start)
    if end is None or not end > 0:
        raise ValueError(f"temperature_schedule: {name} needs a final temperature: write temperature_end: 0.6.")
    if "temperature" in (fields["generation_kwargs"] or {}):
        raise ValueError(f"temperature_schedule: {name} sets the temperature: drop it from generation_kwargs.")
    every = steps_per_generation * num_iterations  # micro-batches from one generation to the next
    if every % accumulation and accumulation % every:
        raise ValueError(
            f"temperature_schedule: {name} would mix completions of two temperatures in one optimizer step, since "
            f"steps_per_generation {steps_per_generation} x num_iterations {num_iterations} and gradient_accumulation_steps "
            f"{accumulation} do not divide each other: write steps_per_generation: {accumulation}."
        )
    if fields["group_filter"] == "refill" and fields["max_staleness"]:
        raise ValueError(
            f"temperature_schedule: {name} and group_filter: refill would mix groups sampled at two temperatures in one "
            "optimizer step: write max_staleness: 0."
        )
    return TemperatureSchedule(name, start, end)
