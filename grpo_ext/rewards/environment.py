"""The reward `environment`: an environment's own score of its episodes."""

from typing import Any

from grpo_ext.rewards.registry import register


@register("environment")
def environment(
    completions: list[str], environment: list[dict[str, Any] | None], *, key: str = "score"
) -> list[float | None]:
    """A number from the environment's state at the end of the episode.

    A row without an environment is not scored.

    Args:
        environment: the final state of each completion's environment.
        key: the key of the number in the state; `score` is the environment's own score of the
            episode.

    Raises:
        KeyError: if a state does not have this key.
    """
    return [None if state is None else state[key] for state in environment]
