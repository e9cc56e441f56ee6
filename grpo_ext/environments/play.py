"""Test an environment without a model: `play` runs an episode with scripted turns."""

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
Turn = str | Mapping[str, Any]  # a string, or a tool call {"name": ..., "arguments": {...}}


@dataclass(frozen=True)
class PlayedEpisode:
    """The result of `play`: the messages of the episode, its end, and the environment's state."""

    prompt: list[Message]  #: the prompt, including the text returned by `reset`
    messages: list[Message]  #: turns and answers
    #: why the episode ended: `"environment"`, `"turns"` or `"failures"`; empty if the scripted
    #: turns ran out before it ended
    end: End
    state: dict[str, Any]  #: the environment's state, as rewards receive it
    counts: EpisodeCounts  #: turns, tool calls, failures and seconds
    #: the last traceback of each method that failed and of each tool that raised an error
    errors: list[str]


class NoTokens(TurnTokens):
    """A stand-in for `TurnTokens` that has no tokenizer and converts every answer to no tokens."""

    def __init__(self) -> None:
        self.ends = frozenset()
        self.tools = []

    def answer(self, messages: list[Message], ended: bool) -> list[int]:
        """Return an empty list."""
        return []


def play(
    environment: str | Mapping[str, Any] | object,
    turns: Sequence[Turn],
    row: Row | None = None,
) -> PlayedEpisode:
    """Play an episode with scripted turns, to test an environment without a model.

    Errors and time limits of the environment are handled as in a run. Token limits do not apply.

    Args:
        environment: the `environment` of a recipe, or an instance of an environment's class. With
            an instance, the number of turns is not limited, and closing the instance is left to the
            caller.
        turns: the model's turns. Each is a string, or a tool call such as
            `{"name": "check", "arguments": {"expression": "3 + 4"}}`. Turns after the end of the
            episode are not played.
        row: the row of the dataset for `reset`; a seed is computed if there is no column `seed`. By
            default, the row has no columns.

    Raises:
        ValueError: if `environment` is not an environment, has invalid options, or cannot answer
            the model (see `check_answers`); if `row["prompt"]` is set but is not a list of chat
            messages; or if a turn is neither a string nor a tool call.
    """
    rules = rules_of(environment)
    is_named = isinstance(environment, str | Mapping)
    played = rules.new_environment() if is_named else rules.make()  # callers close their own
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
    """Return the episode rules for the `environment` of a recipe, or for an instance.

    With an instance, the number of turns is not limited.

    Raises:
        ValueError: if `environment` is neither of the two, has invalid options, or cannot answer
            the model (see `check_answers`).
    """
    if isinstance(environment, str | Mapping):
        return episode_rules(environment)
    if isinstance(environment, type) or not hasattr(environment, "reset"):
        raise ValueError(
            f"{environment!r} is not an environment. Pass an instance of an environment's class, "
            "or the `environment` of a recipe, such as {'name': 'guess', 'high': 31}."
        )
    instance = environment
    if not isinstance(instance, Environment):
        instance = ToolEnvironment(instance=environment)
    name = type(environment).__name__
    check_answers(name, instance)
    return EpisodeRules(lambda: instance, turns=sys.maxsize, name=name)


def message_of(turn: Turn) -> Message:
    """Return a turn as a chat message; raise `ValueError` unless it is a string or a tool call."""
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
