"""Play an episode again in a new environment, after the old one has failed.

The environment begins with the same seed and gets the same turns of the model, so that the tokens
of the episode stay as they were sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.environments.base import Row
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.guarded import GuardedEnvironment, protected
from grpo_ext.environments.turn_tokens import Message

logger = logging.getLogger(__name__)
ATTEMPTS = 2  # new environments per failure


@dataclass(frozen=True)
class Exchange:
    """A turn of the model and the environment's answer."""

    turn: Message
    unreadable: bool  #: whether the turn has a call that cannot be parsed
    answer: list[Message] | None = None  #: `None` if the environment failed on the turn
    over: bool = False  #: whether the answer ended the episode


@dataclass(frozen=True)
class PlayedAgain:
    """A new environment, which has reached the point at which the old one failed."""

    world: GuardedEnvironment
    opening: str  #: the text that `reset` returned
    answer: list[Message]  #: the answer to the last turn; empty if there was none
    over: bool  #: whether the episode is over


def play_again(
    rules: EpisodeRules, row: Row, opening: str | None, exchanges: Sequence[Exchange]
) -> PlayedAgain | None:
    """Play an episode again, up to the call that failed.

    Args:
        rules: the rules of the episode.
        row: the row of the data set, with its seed.
        opening: the text that `reset` returned; `None` if `reset` failed.
        exchanges: the turns so far; the last one is the turn on which the environment failed.

    Returns:
        The new environment; `None` if `ATTEMPTS` of them failed too, or gave other texts than those
        that the model has read.
    """
    for _ in range(ATTEMPTS):
        try:
            with protected(rules.name, row["seed"], "make"), deadline(rules.step_timeout):
                environment = rules.new_environment()
        except (Exception, TooLate) as error:
            logger.warning(
                f"{rules.name}: a new instance for an episode that is played again could not be "
                f"made: {type(error).__name__}: {error}"
            )
            continue
        world = GuardedEnvironment(environment, rules, row["seed"])
        played = _played(world, row, opening, exchanges)
        if played is not None:
            return played
    return None


def _played(
    world: GuardedEnvironment, row: Row, opening: str | None, exchanges: Sequence[Exchange]
) -> PlayedAgain | None:
    """Play an episode in one environment; return `None` if it fails or gives other texts."""
    world.begin(row)
    text = world.opening()
    if world.broken or opening not in (None, text):
        return None
    answer: list[Message] = []
    over = False
    for exchange in exchanges:
        world.ask(exchange.turn, exchange.unreadable)
        answer, over = world.answer()
        if world.broken:
            return None
        if exchange.answer is not None and (answer, over) != (exchange.answer, exchange.over):
            return None
    return PlayedAgain(world, text, answer, over)
