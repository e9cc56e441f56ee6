"""What an environment says of its own episodes."""

from typing import Any

from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import Example


@register(
    "environment",
    examples=[
        Example("16", 1.0, {"environment": {"score": 1.0}}),
        Example("16", None, {"environment": {"score": None}}),
        Example("16", 0.25, {"environment": {"score": 1.0, "tidy": 0.25}}, {"key": "tidy"}),
    ],
)
def environment(completions: list[str], environment: list[dict[str, Any]], *, key: str = "score") -> list[float | None]:
    """What the state of the environment says at the end of the episode.

    Args:
        environment: the final state of each completion's environment.
        key: of the state, a number; `score` is what the environment itself holds the episode to be worth.
    """
    return [state[key] for state in environment]
