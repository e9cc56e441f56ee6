"""Compute the duration of a run from its steps, evaluations and saves."""

from dataclasses import dataclass

BESIDE = ("evaluation", "checkpoint")  # phases that are not part of a step


@dataclass(frozen=True)
class RunTime:
    """How many steps, evaluations and saves a run (or the rest of it) has, and how long each takes.

    The duration of an evaluation or a save is `None` if none has been measured.
    """

    steps: int
    evaluations: int
    saves: int
    step_seconds: float
    evaluation_seconds: float | None = None
    save_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The total time in seconds; evaluations or saves that were not measured count as 0."""
        return (
            self.steps * self.step_seconds
            + self.evaluations * (self.evaluation_seconds or 0.0)
            + self.saves * (self.save_seconds or 0.0)
        )

    def describe(self) -> str:
        """Describe the parts of the run, such as `290 steps of 14 s, 3 evaluations of 80 s`.

        Evaluations or saves whose duration is unknown are counted at the end of the string.
        """
        text = f"{counted(self.steps, 'step')} of {duration(self.step_seconds)}"
        unmeasured = []
        for name, count, seconds in (
            ("evaluation", self.evaluations, self.evaluation_seconds),
            ("save", self.saves, self.save_seconds),
        ):
            if count and seconds is None:
                unmeasured.append(counted(count, name))
            elif count:
                text += f", {counted(count, name)} of {duration(seconds or 0.0)}"
        if unmeasured:
            text += f"; plus {' and '.join(unmeasured)}, not measured yet"
        return text


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 step` or `1,200 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a duration briefly, such as `0.25 s`, `80 s`, `12 min` or `1 h 20 min`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours = minutes // 60
    if hours == 0:
        return f"{minutes} min"
    if hours >= 100:
        return f"{minutes / 60:,.0f} h"
    return f"{hours} h {minutes % 60} min"
