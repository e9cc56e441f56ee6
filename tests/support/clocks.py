"""Logged figures without those of the clock and of memory, which differ from run to run."""

from grpo_ext.trainer.phases import LOGGED

CLOCKS = ("time", "per_second", "runtime", "speed", "train_loss", "overlap/", *LOGGED)


def timeless(row):
    return {key: value for key, value in row.items() if not any(clock in key for clock in CLOCKS)}
