"""Run the examples that a reward was registered with."""

import math
from collections.abc import Iterable
from typing import Any

from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.registry import build, lookup
from grpo_ext.rewards.reward import Example, Score


def check_reward(name: str) -> tuple[list[str], int]:
    """Run all examples of a registered reward; return a list of faults and the number of examples.

    A failing example is a fault. It is also a fault if the examples do not include two different
    scores, unless the scores come from a server or a language model.

    Raises:
        ValueError: if no reward has this name.
    """
    info = lookup(name)
    faults = []
    for example in info.examples:
        fault = check_example(name, example)
        if fault is not None:
            faults.append(fault)
    # Examples cannot fix the scores of a server or a language model.
    has_fixed_scores = "url" not in info.options and not info.loads_model
    if has_fixed_scores and not scores_differ(info.examples):
        faults.append(
            "no two examples have different scores. Add an example with a higher score and one "
            "with a lower score to register(..., examples=[...])"
        )
    return faults, len(info.examples)


def check_example(name: str, example: Example) -> str | None:
    """Run an example of the reward `name`; return why it fails, or `None` if it passes."""
    try:
        [score] = build(name, **example.options)(**example.arguments)
    except Exception as error:
        return f"{example.completion!r} raises {type(error).__name__}: {error}"
    if score is None or example.score is None:
        is_right = score is example.score
    else:
        is_right = math.isclose(score, example.score, rel_tol=1e-6, abs_tol=1e-9)
    if is_right:
        return None
    return f"{example.completion!r} gets {score}, not {example.score}"


def constant_warning(reward: Any, scores: list[Score]) -> str | None:
    """Return a warning if a reward gave the same score to all of several made-up completions.

    Return `None` if the scores differ, if a score is missing or there are fewer than two, or if the
    reward's examples have different scores.
    """
    examples = getattr(unguarded(reward), "examples", ())
    if len(scores) < 2 or None in scores or len({*scores}) > 1 or scores_differ(examples):
        return None
    return (
        f"reward {reward.__name__!r} gave {scores[0]:g} to each of {len(scores)} made-up "
        "completions. Such completions say little about a reward that judges wording. Try the "
        "reward on the model's own completions with `grpo-ext check --sample 8`."
    )


def scores_differ(examples: Iterable[Example]) -> bool:
    return len({example.score for example in examples} - {None}) > 1
