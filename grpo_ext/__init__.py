"""grpo_ext: GRPO training on top of Hugging Face TRL, with recipes, rewards and evaluation.

Public names are imported on first use, which keeps `import grpo_ext` and `grpo-ext --help` fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"  # `.dev0` until the release; see CONTRIBUTING.md

_HOME = {
    "GRPOExtConfig": "grpo_ext.recipe.schema",
    "GRPOExtTrainer": "grpo_ext.trainer",
    "load_recipe": "grpo_ext.recipe.load",
    "RecipeError": "grpo_ext.recipe.problems",
    "register": "grpo_ext.rewards",
    "build": "grpo_ext.rewards",
    "list_rewards": "grpo_ext.rewards",
    "Environment": "grpo_ext.environments.base",
    "play": "grpo_ext.environments.play",
}

__all__ = [*_HOME]

if TYPE_CHECKING:  # `as` tells type checkers that the names are public
    from grpo_ext.environments.base import Environment as Environment
    from grpo_ext.environments.play import play as play
    from grpo_ext.recipe.load import load_recipe as load_recipe
    from grpo_ext.recipe.problems import RecipeError as RecipeError
    from grpo_ext.recipe.schema import GRPOExtConfig as GRPOExtConfig
    from grpo_ext.rewards import build as build
    from grpo_ext.rewards import list_rewards as list_rewards
    from grpo_ext.rewards import register as register
    from grpo_ext.trainer import GRPOExtTrainer as GRPOExtTrainer


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'grpo_ext' has no attribute {name!r}")
    import_module("grpo_ext.common.devices").wait_calmly()
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
