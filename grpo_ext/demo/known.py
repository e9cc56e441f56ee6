"""The demos by name; each module has a `DEMO`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_ext.demo.pipeline import Demo

DEMOS = {
    "countdown": "grpo_ext.demo.countdown_demo",
    "gsm8k": "grpo_ext.demo.gsm8k_demo",
    "poem": "grpo_ext.demo.poem_demo",
}


def get_demo(name: str) -> Demo:
    """The demo called `name`, a key of `DEMOS`."""
    return import_module(DEMOS[name]).DEMO
