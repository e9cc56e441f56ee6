"""The environment `check`: Countdown with a tool that checks expressions."""

from collections.abc import Sequence

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.tools import Tool
from grpo_ext.rewards.countdown_reward import fault_of


class Check(Environment):
    """Countdown with a tool that the model can use to check an expression before it answers.

    A row needs the columns `nums` and `target`. The state contains `checks`, the number of times
    the tool was called. There is no score: use the reward `countdown` to score the answer.
    """

    def __init__(self) -> None:
        self.checks = 0  # number of tool calls
        self._row: Row = {}

    def reset(self, row: Row) -> None:
        self._row = row

    def tools(self) -> Sequence[Tool]:
        return [self.check]

    def check(self, expression: str) -> str:
        """Say whether an expression uses all numbers and makes the target.

        Args:
            expression: Such as 8 + 3 - 1.
        """
        self.checks += 1
        nums = self._row["nums"]
        target = self._row["target"]
        fault = fault_of(str(expression), nums, target)
        return f"no, {fault}" if fault else "yes"
