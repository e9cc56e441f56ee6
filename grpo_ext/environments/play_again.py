"""Replay episodes in new environments, after the old environments have failed.

A new environment begins with the same seed and receives the same turns, so that the tokens of the
episode stay as they were sampled. Several episodes are replayed together, one turn of each at a
time, so that environments that answer in the background work at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_ext.common.user_code import deadline, exit_if_forked
from grpo_ext.environments.base import Row
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.guarded import GuardedEnvironment, protected
from grpo_ext.environments.turn_tokens import Message

logger = logging.getLogger(__name__)
ATTEMPTS = 2  # new environments per failure


@dataclass(frozen=True)
class Exchange:
    """A turn that the model wrote, and the environment's answer."""

    turn: Message
    fault: Message | None  #: the error message in reply to an invalid call, else `None`
    answer: list[Message] | None = None  #: `None` if the environment failed on the turn
    over: bool = False  #: whether the answer ended the episode


class Replay:
    """An episode that is replayed in a new environment, up to and including the call that failed.

    Args:
        rules: the rules of the episode.
        row: the row of the dataset, with its seed.
        opening: the text returned by `reset`, as the model saw it; `None` if `reset` failed.
        exchanges: the turns so far; the last one is the turn on which the environment failed. The
            sequence is empty if `reset` failed.
    """

    def __init__(
        self,
        rules: EpisodeRules,
        row: Row,
        opening: str | None,
        exchanges: Sequence[Exchange],
    ):
        self.rules = rules
        self.row = row
        self.exchanges = exchanges
        self._expected_opening = opening
        #: the new environment; `None` before the replay, and if all new environments failed
        self.world: GuardedEnvironment | None = None
        self.opening = ""  #: the text that the new environment's `reset` returned
        self.answer: list[Message] = []  #: its answer to the last turn; empty if there was none
        self.over = False  #: whether the episode is over
        self.failures = 0  #: failures of the new environments that were discarded
        self.seconds = 0.0  #: seconds that the calls of those environments took

    def begin(self) -> None:
        """Begin the episode in a new environment, without waiting for `reset`.

        If the environment cannot be created, count a failure and log a warning; `world` then stays
        `None`.
        """
        try:
            with (
                protected(self.rules.name, self.row["seed"], "make"),
                deadline(self.rules.step_timeout),
                exit_if_forked(),
            ):
                environment = self.rules.new_environment()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.failures += 1
            logger.warning(
                f"{self.rules.name}: a new instance could not be created to play an episode again: "
                f"{type(error).__name__}: {error}"
            )
            return
        self.world = GuardedEnvironment(environment, self.rules, self.row["seed"])
        self.world.begin(self.row)

    def open(self, world: GuardedEnvironment) -> None:
        """Wait for `reset`; discard the environment if `reset` failed or returned a different text.

        The text must equal the one that the model saw. If `reset` of the old environment failed,
        the model has seen no text, so any text is accepted.

        Args:
            world: the new environment.
        """
        self.opening = world.opening()
        self._check(world, self._expected_opening in (None, self.opening))

    def hear(self, world: GuardedEnvironment, exchange: Exchange) -> None:
        """Wait for the answer to a turn; discard the environment if it fails or the answer differs.

        The answer must equal the one in `exchange`. If the old environment failed on this turn, any
        answer is accepted.

        Args:
            world: the new environment.
            exchange: the turn, with the answer of the old environment.
        """
        self.answer, self.over = world.answer()
        expected = (exchange.answer, exchange.over)
        self._check(world, exchange.answer is None or expected == (self.answer, self.over))

    def _check(self, world: GuardedEnvironment, is_same: bool) -> None:
        """Discard the environment if it failed, or did not return what the model saw.

        The failures and the seconds of a discarded environment are added to those of this replay.

        Args:
            world: the new environment.
            is_same: whether it returned what the model saw, if the model saw anything.
        """
        if world.broken or not is_same:
            self.failures += world.failures
            self.seconds += world.seconds
            self.world = None


class Retries:
    """Creates the replays of one episode, for `on_failure: retry`, and adds up their failures.

    Args:
        rules: the rules of the episode.
        row: the row of the dataset, with its seed.
    """

    def __init__(self, rules: EpisodeRules, row: Row):
        self.rules = rules
        self.row = row
        self.failures = 0  #: failures of the environments that were replaced or discarded
        self.seconds = 0.0  #: seconds that the calls of those environments took
        self._replay: Replay | None = None

    def begin(
        self, world: GuardedEnvironment, opening: str | None, exchanges: Sequence[Exchange]
    ) -> Replay | None:
        """Return a replay for `play_again` if the environment failed and is to be retried.

        Otherwise, return `None`.

        Args:
            world: the environment that may have failed.
            opening: the text that `reset` returned; `None` if it is `reset` that may have failed.
            exchanges: the turns so far, including the one that was answered last.
        """
        self._replay = None
        if self.rules.on_failure == "retry" and world.broken:
            self._replay = Replay(self.rules, self.row, opening, exchanges)
        return self._replay

    def end(self, world: GuardedEnvironment) -> Replay | None:
        """Return the replay if it succeeded; `None` if it failed or there was none.

        Call this after `play_again`. If a replay is returned, the caller must replace `world` with
        the replay's `world`. The failures and seconds of all discarded environments, and of a
        `world` to be replaced, are added to `failures` and `seconds`.
        """
        replay = self._replay
        self._replay = None
        if replay is None:
            return None
        self.failures += replay.failures
        self.seconds += replay.seconds
        if replay.world is None:
            return None
        self.failures += world.failures
        self.seconds += world.seconds
        return replay


def play_again(replays: Sequence[Replay]) -> None:
    """Replay episodes together, each in up to `ATTEMPTS` new environments.

    An environment is discarded if it fails, or if the text returned by `reset` or an answer differs
    from the one that the model saw. If a replay succeeds, its `world` is the new environment;
    otherwise, its `world` is `None`.
    """
    for _ in range(ATTEMPTS):
        without_world = [replay for replay in replays if replay.world is None]
        for replay in without_world:
            replay.begin()
        for replay in without_world:
            if replay.world is not None:
                replay.open(replay.world)
        longest = max((len(replay.exchanges) for replay in without_world), default=0)
        for turn in range(longest):
            _play_turn(without_world, turn)


def _play_turn(replays: Sequence[Replay], turn: int) -> None:
    """Play turn `turn` (0-based) of each episode that is long enough and has an environment."""
    playing = []
    for replay in replays:
        if replay.world is not None and turn < len(replay.exchanges):
            playing.append((replay, replay.world, replay.exchanges[turn]))
    for _, world, exchange in playing:
        world.ask(exchange.turn, exchange.fault)
    for replay, world, exchange in playing:
        replay.hear(world, exchange)
