"""Clocks: figures without those of the clock and of memory, and a clock that does not wait."""

from grpo_ext.trainer.phases import LOGGED

CLOCKS = ("time", "per_second", "runtime", "speed", "train_loss", "overlap/", *LOGGED)


def timeless(row):
    return {key: value for key, value in row.items() if not any(clock in key for clock in CLOCKS)}


class Clock:
    """Takes the place of the module `time`; a sleep takes no time and moves the clock on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
