"""A short run of the recipe `countdown/tiny`: its settings, and the same as words of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.places import REPO

RECIPE = REPO / "recipes" / "countdown" / "tiny.yaml"
# An untrained model solves nothing, so rewards of the recipe would differ in no group.
SIGNAL = {
    "reward_funcs": [{"name": "length", "target": 1, "unit": "characters"}],
    "reward_weights": [1.0],
}


def short_settings(model: Path, out: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a run that evaluates and saves nothing.

    Args:
        model: the folder of the model.
        out: the output folder.
        settings: keys that differ, or are added.
    """
    usual = {
        "model_name_or_path": str(model),
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "num_problems": 64,
        "eval_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return {**usual, **settings}


def plugin_settings(model: Path, out: Path, plugin: str, reward: str, **settings: Any) -> dict:
    """Return `short_settings` with a plugin, which is written beside `out`, and its reward.

    Args:
        model: the folder of the model.
        out: the output folder.
        plugin: the text of the plugin.
        reward: the name of the reward that it registers.
        settings: keys that differ, or are added.
    """
    path = out.with_name("mine.py")
    path.write_text(plugin)
    rewards = {"reward_plugins": [str(path)], "reward_funcs": [reward], "reward_weights": [1.0]}
    return short_settings(model, out, **rewards, **settings)


def words_of(settings: dict[str, Any]) -> list[str]:
    """Return the words of `grpo-ext train` for the recipe with these settings."""
    words = ["--config", str(RECIPE)]
    for key, setting in settings.items():
        words += [f"--{key}", setting if isinstance(setting, str) else json.dumps(setting)]
    return words
