"""Rewards: functions of texts and columns, found by name, without torch and without a trainer.

`@register("name")` adds a reward, `build("name", **options)` makes it callable, `list_rewards()` is the catalogue.
"""

from importlib.util import find_spec

from grpo_ext.rewards import accuracy, countdown_reward, format, language, length, trl_builtin  # noqa: F401 - they register
from grpo_ext.rewards.registry import build, list_rewards, register, register_lazily
from grpo_ext.rewards.reward import Example, Reward, RewardInfo

register_lazily("grpo_ext.rewards.environment", "environment")
register_lazily("grpo_ext.rewards.poem.poem_rewards", "poem_format", "poem_yun")
if find_spec("reasoning_gym"):  # of the extra `reasoning-gym`
    register_lazily("grpo_ext.rewards.gym_reward", "reasoning_gym")

__all__ = ["Example", "Reward", "RewardInfo", "build", "list_rewards", "register"]
