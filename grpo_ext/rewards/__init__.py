"""Reward functions, which score completions using dataset columns and need no trainer.

Importing this package does not import torch. Rewards that load a model or call TRL import torch
when they are called.

`@register("name")` registers a function as a reward, `build("name", **options)` returns a
registered reward as a callable, and `list_rewards()` returns a `RewardInfo` for each registered
reward.
"""

# ruff: noqa: F401 - importing these modules registers their rewards
from grpo_ext.rewards import (
    accuracy,
    answer_kinds,
    countdown_reward,
    environment,
    format_rewards,
    instructions_reward,
    judge_reward,
    reasoning_gym_reward,
    relevance,
    right_steps,
    trl_builtin,
)
from grpo_ext.rewards.code import code_reward
from grpo_ext.rewards.poem import poem_rewards
from grpo_ext.rewards.registry import build, list_rewards, register
from grpo_ext.rewards.reward import Example, Reward, RewardInfo

__all__ = ["Example", "Reward", "RewardInfo", "build", "list_rewards", "register"]
