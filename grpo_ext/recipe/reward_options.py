"""Options for calling rewards; see `docs/rewards.md`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from grpo_ext.common.modules import load_file
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import CountOrZero, Positive, Share


@dataclass
class RewardOptions:
    """Recipe keys for calling rewards; a base of `GRPOExtConfig`.

    Args:
        reward_max_failure_rate (`float`, defaults to 0.5): the run stops if a reward fails on more
            than this share of the last 256 rows that it did not decline (by returning `None`),
            once there are 64 of these rows; the error shows the last failure. A reward fails if it
            raises an error, exceeds its time limit, or returns the wrong number of values or a
            value that is not a finite number from -1e12 to 1e12; the rows concerned are then not
            scored, and `rewards/NAME/failed` counts them. If 0, the first failure stops
            the run.
        reward_workers (`int`, defaults to 1): the number of worker processes per rank for rewards
            that need much CPU time; for `accuracy`, they are started at the first formula. If 0,
            the training process computes all rewards, without a memory limit.
        reward_timeout (`float`, defaults to 5.0): the time limit of a reward in seconds per row.
            The limit for a batch is this value times the number of rows. If a call exceeds it, the
            rows are scored one at a time, each under the limit per row, and a row that exceeds that
            is not scored. An async reward is not called again, and none of the rows is scored. In
            the training process, only Python code can be interrupted.
    """

    reward_max_failure_rate: Share = 0.5
    reward_workers: CountOrZero = 1
    reward_timeout: Positive = 5.0


def load_plugins(v: Values, _: int) -> Iterator[Problem]:
    """Load the plugin files, which may register names that later rules look up; yield nothing.

    A file that cannot be loaded is skipped; the error is reported when the rewards are built.
    """
    for path in v.reward_plugins or ():
        with suppress(Exception):  # reported where the rewards are built
            load_file(path)
    yield from ()


RULES: tuple[Rule, ...] = (load_plugins,)
