"""Play an episode of an environment with given turns: `play`, for tests without a model."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_ext.environments.base import Environment, Row
from grpo_ext.environments.episode import End, Episode
from grpo_ext.environments.episode_figures import EpisodeCounts
from grpo_ext.environments.episode_rules import EpisodeRules, check_answers, episode_rules
from grpo_ext.environments.open_environments import close_played
from grpo_ext.environments.tools import ToolEnvironment
from grpo_ext.environments.turn_tokens import Message, TurnTokens

CALL_KEYS = {"name", "arguments", "id", "type"}
Turn = str | Mapping[str, Any]  # a text, or a call: {"name": ..., "arguments": {...}}


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that has been played."""

    prompt: list[Message]  #: the prompt, with the text of `reset`
    messages: list[Message]  #: turns and answers
    #: why it ended: `"environment"`, `"turns"`, `"failures"`; empty if the turns ran out first
    end: End
    state: dict[str, Any]  #: the environment's state, as rewards read it
    counts: EpisodeCounts  #: turns, calls, failures, seconds
    errors: list[str]  #: the last traceback of each method that failed and each tool that raised


class NoTokens(TurnTokens):
    """Converts answers to no tokens, for episodes without a tokenizer."""

    def __init__(self) -> None:
        self.ends = frozenset()
        self.tools = []

    def answer(self, messages: list[Message], ended: bool) -> list[int]:
        """Return no tokens."""
        return []


def play(
    environment: str | Mapping[str, Any] | object,
    turns: Sequence[Turn],
    row: Row | None = None,
) -> PlayedEpisode:
    """Play an episode with given turns, guarded as in a run, but without a model and its tokens.

    Args:
        environment: the `environment` of a recipe, with its limits; or an instance of a class,
            which has no limit of turns and is not closed.
        turns: the turns of the model: texts, and calls of tools of the form
            `{"name": "check", "arguments": {"expression": "3 + 4"}}`. Turns after the end of the
            episode are not played.
        row: the row of the dataset that `reset` gets, with a computed seed if it has no column
            `seed`; by default, a row without columns.

    Raises:
        ValueError: if `rules_of` refuses the environment, `Episode` refuses the prompt of `row`, or
            a turn is neither a text nor a call.
    """
    rules = rules_of(environment)
    is_named = isinstance(environment, str | Mapping)
    played = rules.new_environment() if is_named else rules.make()  # the caller closes its own
    episode = Episode(rules, NoTokens(), sys.maxsize, row or {}, played)
    try:
        for turn in turns:
            if episode.ended:
                break
            message = message_of(turn)
            episode.take_turn(message, message["content"])
            episode.hear()
        state = episode.world.state()
    finally:
        close_played([rules], lasting=True)
    failures = rules.failures
    errors = [count.last_error for count in failures.methods.values() if count.failed]
    errors += failures.last_raised.values()
    return PlayedEpisode(
        prompt=episode.prompt,
        messages=episode.messages,
        end=episode.end,
        state=state,
        counts=EpisodeCounts.of(episode),
        errors=errors,
    )


def rules_of(environment: object) -> EpisodeRules:
    """Return the rules of an episode, from the `environment` of a recipe or from an instance.

    Raises:
        ValueError: if `environment` is neither, or if `episode_rules` (for a recipe's) or
            `check_answers` (for an instance) refuses it.
    """
    if isinstance(environment, str | Mapping):
        return episode_rules(environment)
    if isinstance(environment, type) or not hasattr(environment, "reset"):
        raise ValueError(
            f"{environment!r} is not an environment: pass an instance of a class, or the "
            "`environment` of a recipe, such as {'name': 'guess', 'high': 31}."
        )
    instance = environment
    if not isinstance(instance, Environment):
        instance = ToolEnvironment(instance=environment)
    name = type(environment).__name__
    check_answers(name, instance)
    return EpisodeRules(lambda: instance, turns=sys.maxsize, name=name)


def message_of(turn: Turn) -> Message:
    """Return a turn as a chat message; raise `ValueError` if it is neither a text nor a call."""
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    if isinstance(turn, Mapping) and "name" in turn and turn.keys() <= CALL_KEYS:
        function = {"name": turn["name"], "arguments": turn.get("arguments", {})}
        call = {"type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    raise ValueError(
        f"a turn must be a string or a call such as {{'name': 'check', 'arguments': {{}}}}; got "
        f"{turn!r:.200}"
    )
