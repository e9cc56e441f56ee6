"""The `environment` reward: the score that an environment gives to its own episode."""

from typing import Any

from grpo_ext.rewards.registry import register


@register("environment")
def environment(
    completions: list[str], environment: list[dict[str, Any] | None], *, key: str = "score"
) -> list[float | None]:
    """A number from the environment's state at the end of the episode.

    `None` for a row without an environment.

    Args:
        environment: the final state of each row's environment; `None` if the row has no
            environment.
        key: the key of the number in the state; `score` is the environment's own score of the
            episode.

    Raises:
        KeyError: if a state does not have this key.
    """
    return [None if state is None else state[key] for state in environment]
