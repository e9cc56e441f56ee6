"""Rewards: functions of text and columns, found by name. No torch here, and no trainer.

`@register("name")` adds one, `build("name", **options)` makes it callable, `list_rewards()` is the catalogue.
"""

from grpo_ext.rewards import (  # noqa: F401 - they register
    accuracy,
    countdown_reward,
    environment,
    format,
    language,
    length,
    trl_builtin,
)
from grpo_ext.rewards.registry import build, list_rewards, register, register_lazily
from grpo_ext.rewards.reward import Example, Reward, RewardInfo

register_lazily("grpo_ext.rewards.poem.poem_rewards", "poem_format", "poem_yun")

__all__ = ["Example", "Reward", "RewardInfo", "build", "list_rewards", "register"]
