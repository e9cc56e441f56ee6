"""Runs the examples that a reward was registered with."""

import math
from collections.abc import Iterable
from typing import Any

from grpo_ext.rewards.registry import build, lookup
from grpo_ext.rewards.reward import Example, Score


def check_reward(name: str) -> tuple[list[str], int]:
    """Return the faults that the examples of the reward `name` show, in words, and the number of examples."""
    info = lookup(name)
    examples = info.examples
    faults = [fault for example in examples if (fault := check_example(name, example))]
    by_others = "url" in info.options or info.loads_model  # no example fixes what they say
    if not by_others and not scores_differ(examples):
        faults.append(
            "there must be an example that earns more and one that earns less: register(..., examples=[...])"
        )
    return faults, len(examples)


def check_example(name: str, example: Example) -> str | None:
    """Return why an example fails, or None."""
    try:
        [score] = build(name, **example.options)(**example.given)
    except Exception as error:
        return f"{example.completion!r} raises {type(error).__name__}: {error}"
    if score is None or example.score is None:
        right = score is example.score
    else:
        right = math.isclose(score, example.score, rel_tol=1e-6, abs_tol=1e-9)
    return None if right else f"{example.completion!r} gets {score}, not {example.score}"


def constant_warning(reward: Any, scores: list[Score]) -> str | None:
    """Return a warning about a reward that gave one score to different completions; None if its examples have several."""
    examples = getattr(getattr(reward, "reward", reward), "examples", ())
    if len(scores) < 2 or None in scores or len({*scores}) > 1 or scores_differ(examples):
        return None
    return (
        f"reward {reward.__name__!r} gave {scores[0]:g} to each of {len(scores)} different completions. A reward that "
        "cannot differ teaches nothing: try it on completions of your own."
    )


def scores_differ(examples: Iterable[Example]) -> bool:
    return len({example.score for example in examples} - {None}) > 1
