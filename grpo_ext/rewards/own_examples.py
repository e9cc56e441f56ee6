"""A reward's own examples, run: does it still say what it promises?"""

import math

from grpo_ext.rewards.registry import build, lookup
from grpo_ext.rewards.reward import Example, Score


def check_reward(name: str) -> tuple[list[str], int]:
    """What is wrong with the reward `name` by its own examples, in words, and how many there are."""
    try:
        examples = lookup(name).examples
    except ImportError as error:
        return [f"not available: {error}"], 0
    faults = [fault for example in examples if (fault := check_example(name, example))]
    if len({example.score for example in examples if example.score is not None}) < 2:
        faults.append(
            "there must be an example that earns more and one that earns less: register(..., examples=[...])"
        )
    return faults, len(examples)


def check_example(name: str, example: Example) -> str | None:
    """Why an example fails, or None."""
    columns = {key: [value] for key, value in example.columns.items()}
    try:
        [score] = build(name, **example.options)(completions=[example.completion], **columns)
    except Exception as error:
        return f"{example.completion!r} raises {type(error).__name__}: {error}"
    return None if same(score, example.score) else f"{example.completion!r} gets {score}, not {example.score}"


def same(score: Score, expected: Score) -> bool:
    if score is None or expected is None:
        return score is expected
    return math.isclose(score, expected, rel_tol=1e-6, abs_tol=1e-9)
